// The commands of kb. cli.cpp has the table of their names and options.
#pragma once

#include <string>
#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// The arguments of all commands; a command uses some of them.
struct Arguments : Filter {
  std::string db;
  bool json = false;
  std::vector<std::string> files, words;
  std::string id, file;
  bool strict = false, loaded = false;
  std::string format = "jsonl", skill = "gpu-perf";
  std::string a, b, by = "file", out;
  double floor_percent = 2;
};

/// Each command prints its result, and returns the exit status. Throws BadInput for arguments that are not allowed.
int run_ingest(const Arguments& given);
int run_search(const Arguments& given);
int run_show(const Arguments& given);
int run_list(const Arguments& given);
int run_stats(const Arguments& given);
int run_verify(const Arguments& given);
int run_check(const Arguments& given);
int run_pool(const Arguments& given);
int run_decisions(const Arguments& given);
int run_fit(const Arguments& given);
int run_export(const Arguments& given);
int run_compare(const Arguments& given);
int run_interval(const Arguments& given);

}  // namespace attn::kb
