#include "findings/kb/cli.h"

#include <fmt/format.h>

#include <string_view>
#include <type_traits>
#include <variant>

#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/run_program.h"
#include "common/base/standard_streams.h"
#include "findings/kb/commands.h"
#include "findings/kb/record_input.h"
#include "findings/kb/sqlite.h"

namespace attn::kb {
namespace {

constexpr const char* summary = "The knowledge base: searches, checks and compares the findings of the experiments.";

constexpr const char* footer = R"(
DATABASE
  --db FILE, else $KB_DB, else $XDG_DATA_HOME/attention-proto/kb.sqlite, else ~/.local/share/attention-proto/kb.sqlite.
  FILE is the path of a file, not one of SQLite's special names (:memory:, file:...).
  ingest creates the file if it is missing. Several processes may use the file at once. If the file or its folder
  cannot be written, commands that only read still work; ingest ends with status 2.

EXIT STATUS
  0    done
  1    a record file has bad lines, verify or check found problems, or compare found a regression; or the command
       failed, for example because a file could not be written
  2    bad input: one line names the bad input and says what is allowed
  130  interrupted; nothing is kept of the file that was being ingested

kb COMMAND --help describes a command. Write '--' before words that begin with '-'.
)";

struct Command {
  const char* name;
  int (*run)(const Arguments&);
  const char* help;
};

constexpr Command commands[] = {
    {"ingest", run_ingest, "add the sound lines of each FILE that can be read to its end; skip known records"},
    {"search", run_search, "findings with all the words, best first; WORD* matches words that begin with WORD"},
    {"show", run_show, "print one record of the knowledge base, or else of findings/recorded"},
    {"list", run_list, "print one line per record, in order of arrival"},
    {"stats", run_stats, "print numbers of records by kind, verdict, device and so on"},
    {"verify", run_verify,
     "render every finding's text again, compute verdicts again, check ids, schema and units; list "
     "contradicting findings, and findings whose kernels have changed since the measurement"},
    {"check", run_check, "check record files that another program wrote: one line per bad record"},
    {"pool", run_pool,
     "print each claim's figure and verdict, pooled over the runs that have the code and the conditions of the claim's "
     "latest run, as JSON lines"},
    {"decisions", run_decisions,
     "print what to take on each device: a table for each question, by measurements and claims of all runs"},
    {"fit", run_fit,
     "fit the spread between runs to recorded runs, per device, hypothesis and kind of figure, and test how many "
     "figures "
     "lie in the intervals of the other runs; write findings/spread.json, which new runs read"},
    {"interval", run_interval,
     "answer each line of JSON with a line of JSON: {\"count\": K, \"total\": N} with the exact 95 % interval of the "
     "share K / N (ci_lo, ci_hi), {\"probability\": P, \"freedom\": F} with the quantile of Student's t distribution"},
    {"export", run_export, "print records for other programs"},
    {"compare", run_compare,
     "say for each configuration (case of an experiment) if B is FASTER, SLOWER, the SAME or UNCLEAR. Exit 1 if a "
     "configuration is slower in B, or correct in A and neither correct nor skipped in B"}};

template <typename Type>
using Member = Type Arguments::*;

/// An option or an argument of some commands.
struct Option {
  std::string_view commands;  // their names, each between blanks
  const char *name, *type, *help;
  std::variant<Member<std::string>, Member<std::vector<std::string>>, Member<bool>, Member<double>, Member<int64_t>>
      value;
  bool required = false;
  std::string_view allowed = {};  // the texts that are allowed, each between blanks; empty: all
  double most = 1;                // of a double
};

using A = Arguments;
const Option options[] = {
    {" ingest ", "FILE", "",
     "measurements.jsonl, findings.jsonl, a recorded run (.jsonl.gz), or '-' for stdin (default); plain or gzip",
     &A::files},
    {" search ", "QUERY", "", "words as the records have them: d128, bf16, flash_attention, head_dim=64", &A::words,
     true},
    {" show ", "ID", "", "the id of a record, or its first digits; or the claim_key of a finding", &A::id, true},
    {" verify pool decisions ", "FILE", "", "take these record files in place of the knowledge base", &A::files},
    {" pool ", "--loaded", "", "pool the runs on loaded machines in place of those on quiet machines", &A::loaded},
    {" verify ", "--strict", "", "exit 1 also for contradictions and stale findings", &A::strict},
    {" check ", "FILE", "", "record files", &A::files, true},
    {" fit ", "FILE", "", "record files; default: findings/recorded of the source tree", &A::files},
    {" fit ", "--out", "FILE",
     "write this file in place of findings/spread.json; '-' is stdout; required if a FILE is named", &A::out},
    {" pool ", "--decisions", "FILE", "write what kb --json decisions prints into this file", &A::out},
    {" interval ", "FILE", "", "the lines; default: stdin, where each line is answered at once", &A::file},
    {" export ", "--format", "F",
     "jsonl (default): the original lines\nmd: findings for readers\ncsv: for spreadsheets\n"
     "gpu-forge: kb add commands for the published study's knowledge base",
     &A::format, false, " jsonl md csv gpu-forge "},
    {" export ", "--skill", "S", "with gpu-forge: the SKILL to add findings to; default gpu-perf", &A::skill},
    {" compare ", "A", "", "folder or file of records, device or commit", &A::a, true},
    {" compare ", "B", "", "folder or file of records, device or commit", &A::b, true},
    {" compare ", "--by", "WHAT",
     "what A and B name: file (default; also a folder), or device or commit of the knowledge base", &A::by, false,
     " file device commit "},
    {" compare ", "--floor", "PERCENT",
     "differences up to PERCENT (default 2) count as noise. If the findings of the records have a\n"
     "higher noise floor, the higher floor counts",
     &A::floor_percent, false, "", 100},
    {" search list export decisions ", "--device", "D", "only records of devices whose name contains D", &A::device},
    {" search list export decisions compare ", "--proto", "P",
     "only records of experiments whose name begins with P: proto1", &A::experiment},
    {" search list export ", "--max-wrong", "P", "only findings whose verdict is wrong with at most this probability",
     &A::max_wrong},
    {" list export ", "--kind", "K", "only finding, measurement or run", &A::kind, false, " finding measurement run "},
    {" search list export ", "--limit", "N", "at most N records", &A::limit}};

/// Whether a list of words, each between blanks, has the word.
bool has_word(std::string_view words, const std::string& word) {
  return word.find(' ') == word.npos && words.find(fmt::format(" {} ", word)) != words.npos;
}

void add_option(CLI::App& app, const Option& option, Arguments& given) {
  const auto add = [&]<typename Type>(Member<Type> member) {
    Type& value = given.*member;
    if constexpr (std::is_same_v<Type, bool>) {
      app.add_flag(option.name, value, option.help);
    } else if constexpr (std::is_same_v<Type, double>) {
      number_option(app, option.name, value, 0.0, option.most, option.type, option.help);
    } else if constexpr (std::is_same_v<Type, int64_t>) {
      number_option(app, option.name, value, int64_t{1}, INT64_MAX, option.type, option.help);
    } else {
      app.add_option(option.name, value, option.help)->type_name(option.type)->required(option.required);
    }
  };
  std::visit(add, option.value);
}

void check_text(const Option& option, const Arguments& given) {
  const auto* const member = std::get_if<Member<std::string>>(&option.value);
  if (!member || option.allowed.empty() || (given.**member).empty() || has_word(option.allowed, given.**member)) return;
  throw BadInput(fmt::format("{} {}: not allowed; one of{}", option.name, given.**member, option.allowed));
}

int run_command(int argc, const char* const* argv) {
  Arguments given;
  CLI::App app(summary, "kb");
  app.get_formatter()->column_width(32);
  app.footer(footer);
  add_help_and_version(app);
  app.add_option("--db", given.db, "the knowledge base's file, see DATABASE")->type_name("FILE");
  app.add_flag("--json", given.json, "JSON lines in place of text");
  app.require_subcommand(0, 1);  // this function refuses a line without a command
  for (const Command& command : commands) {
    CLI::App* const sub = app.add_subcommand(command.name, command.help);
    sub->fallthrough();
    sub->get_formatter()->column_width(32);
    for (const Option& option : options) {
      if (has_word(option.commands, command.name)) add_option(*sub, option, given);
    }
  }
  if (!parse_command_line(app, argc, argv)) return 0;
  for (const Option& option : options) check_text(option, given);
  for (const Command& command : commands) {
    if (app.got_subcommand(command.name)) return command.run(given);
  }
  throw BadInput("name a command; --help lists them");
}

/// Throws the exception that run_program() reports for an error of the database. If the user can do something about the
/// error, the message says what.
[[noreturn]] void explain(const SqlError& error) {
  switch (error.code) {
    case SQLITE_CORRUPT:
      throw BadInput(fmt::format("{}; the file is damaged: ingest the record files into a new one", error.what()));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      throw BadInput(fmt::format(
          "{}; FILE, FILE-wal, FILE-shm and their folder must be writable; --db or KB_DB names another file",
          error.what()));
    case SQLITE_BUSY:
      throw std::runtime_error(
          fmt::format("{}: another process has been writing for a long time; try again later", error.what()));
    default:
      throw error;
  }
}

}  // namespace

int run_kb(int argc, const char* const* argv) {
  return run_program("kb", [&] {
    try {
      return run_command(argc, argv);
    } catch (const Interrupted&) {
      to_stderr("kb: interrupted; nothing is kept of the file that was being ingested\n");
      return 130;
    } catch (const SqlError& error) {
      explain(error);
    }
  });
}

}  // namespace attn::kb
