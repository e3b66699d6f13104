// SPDX-License-Identifier: MIT
/// For this library's own use: what runs around every fork(2) of the process, as by pthread_atfork.
#ifndef PURGEABLE_PRESSURE_FORKS_H
#define PURGEABLE_PRESSURE_FORKS_H

/// Sets it, once. Before a fork it runs behind the program's own handlers, whenever those were added after the library was
/// loaded: the program uses the library under its mutexes, never the other way round. A fork that is under way is not concerned.
void purgeable__set_around_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
