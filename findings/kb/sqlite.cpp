#include "findings/kb/sqlite.h"

#include <fmt/format.h>

namespace attn::kb {
namespace {

[[noreturn]] void fail(sqlite3* connection, int result) {
  const char* path = connection ? sqlite3_db_filename(connection, "main") : nullptr;
  throw SqlError(fmt::format("{}: {}", path && *path ? path : "the knowledge base",
                             connection ? sqlite3_errmsg(connection) : sqlite3_errstr(result)),
                 result & 0xff);
}

}  // namespace

Statement::Statement(sqlite3* connection, std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int result = sqlite3_prepare_v2(connection, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (result != SQLITE_OK) fail(connection, result);
  statement_.reset(statement);
}

void Statement::require(int result) const {
  if (result != SQLITE_OK) fail(sqlite3_db_handle(statement_.get()), result);
}

void Statement::bind_one(int parameter, std::string_view text) {
  // An empty text may have a null pointer, which SQLite would take for NULL.
  require(sqlite3_bind_text64(statement_.get(), parameter, text.empty() ? "" : text.data(), text.size(),
                              SQLITE_TRANSIENT, SQLITE_UTF8));
}

bool Statement::step() {
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  fail(sqlite3_db_handle(statement_.get()), result);
}

std::string Statement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  return text ? std::string(text, sqlite3_column_bytes(statement_.get(), column)) : std::string();
}

Database::Database(const std::string& path, int flags, int busy_timeout_ms) {
  sqlite3* connection = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &connection, flags, nullptr);
  connection_.reset(connection);
  if (result != SQLITE_OK) throw SqlError(fmt::format("{}: {}", path, sqlite3_errstr(result)), result & 0xff);
  sqlite3_busy_timeout(connection, busy_timeout_ms);
}

void Database::execute(const char* sql) const {
  const int result = sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) fail(connection_.get(), result);
}

int64_t Database::integer(std::string_view sql) const {
  Statement statement = prepare(sql);
  return statement.step() ? statement.integer(0) : 0;
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const SqlError&) {
    // SQLite has rolled back by itself, or will roll back when the connection closes.
  }
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

}  // namespace attn::kb
