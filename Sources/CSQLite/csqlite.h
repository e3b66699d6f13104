// SPDX-License-Identifier: MIT
/// SQLite of the system (Debian: libsqlite3-dev), and what Swift cannot call of it.
#ifndef PURGEABLE_CSQLITE_H
#define PURGEABLE_CSQLITE_H

#include <sqlite3.h>

/// Has a connection leave the log as it is when it is closed, even as the last one.
static inline int purgeable__leave_log(sqlite3 *database, int leaves) {
  return sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leaves, (int *)0);
}

/// Of a database that somebody else has made: no trigger runs, and no view is read.
static inline void purgeable__forbid_programs(sqlite3 *database) {
  (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, (int *)0);
#ifdef SQLITE_DBCONFIG_ENABLE_VIEW
  (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, (int *)0);
#endif
}

#endif
