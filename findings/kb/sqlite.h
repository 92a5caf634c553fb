// SQLite with classes that free their resources. Values from records and users reach SQL only through bind().
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace attn::kb {

/// The message has the path of the database, if the database is a file.
struct SqlError : std::runtime_error {
  SqlError(const std::string& what, int result_code) : std::runtime_error(what), code(result_code) {}
  int code;  // SQLITE_FULL, SQLITE_NOTADB, ...
};

class Statement {
 public:
  /// Binds the values (texts, int64_t, double) to the parameters ?1, ?2 ...
  template <typename... Values>
  Statement& bind(const Values&... values) {
    [[maybe_unused]] int parameter = 0;
    (bind_one(++parameter, values), ...);
    return *this;
  }
  /// Returns false if there is no next row. Throws SqlError.
  bool step();
  /// Rewinds to before the first row. Parameters keep their values.
  void reset() { sqlite3_reset(statement_.get()); }
  /// Columns are numbered from 0.
  std::string text(int column) const;
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  double real(int column) const { return sqlite3_column_double(statement_.get(), column); }

 private:
  friend class Database;
  Statement(sqlite3* connection, std::string_view sql);
  void require(int result) const;
  void bind_one(int parameter, std::string_view text);
  void bind_one(int parameter, int64_t value) { require(sqlite3_bind_int64(statement_.get(), parameter, value)); }
  void bind_one(int parameter, double value) { require(sqlite3_bind_double(statement_.get(), parameter, value)); }
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class Database {
 public:
  /// `flags`: SQLITE_OPEN_*. Each access waits up to `busy_timeout_ms` for other processes. Throws SqlError.
  Database(const std::string& path, int flags, int busy_timeout_ms);
  Statement prepare(std::string_view sql) const { return {connection_.get(), sql}; }
  /// Runs one or more statements without parameters.
  void execute(const char* sql) const;
  /// Returns the first column of a query's first row, or 0 if there is no row.
  int64_t integer(std::string_view sql) const;
  /// True by the flags, or because the file cannot be written.
  bool read_only() const { return sqlite3_db_readonly(connection_.get(), "main") == 1; }
  int64_t last_row() const { return sqlite3_last_insert_rowid(connection_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close(connection); }
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

/// Without commit() the destructor undoes all changes made since the construction.
class Transaction {
 public:
  explicit Transaction(const Database& database) : database_(database) { database_.execute("BEGIN IMMEDIATE"); }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  const Database& database_;
  bool open_ = true;
};

}  // namespace attn::kb
