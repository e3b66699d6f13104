// SPDX-License-Identifier: MIT
/// SQLite of the system (Debian: libsqlite3-dev), and what Swift cannot call of it.
#ifndef PURGEABLE_CSQLITE_H
#define PURGEABLE_CSQLITE_H

#include <sqlite3.h>

/// Has a connection leave the log as it is when it is closed, even as the last one.
static inline int purgeable__leave_log(sqlite3 *database, int leaves) {
  return sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leaves, (int *)0);
}

/// How many bytes are in the log that a connection has open; -1 where that is not known.
static inline sqlite3_int64 purgeable__log_byte_count(sqlite3 *database) {
  sqlite3_file *log = 0;
  sqlite3_int64 count = 0;
  int code = sqlite3_file_control(database, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (code != SQLITE_OK || !log || !log->pMethods) return -1;
  return log->pMethods->xFileSize(log, &count) == SQLITE_OK ? count : -1;
}

/// Of a database that somebody else has made: no trigger runs, and no view is read.
static inline void purgeable__forbid_programs(sqlite3 *database) {
  (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, (int *)0);
#ifdef SQLITE_DBCONFIG_ENABLE_VIEW
  (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, (int *)0);
#endif
}

#endif
