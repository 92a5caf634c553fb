#include "common/experiment/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <variant>

#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/number.h"
#include "common/experiment/experiment.h"
#include "common/experiment/sweep_span.h"

namespace attn {
namespace {

constexpr std::string_view footer = R"(
AXES
  --axis NAME=V1,V2          these values            --axis head_dim=64,128
  --axis NAME=A:B:STEP       A, A+STEP, .. up to B   --axis block_c=16:128:16
  --axis NAME=A:B:pow2       A, 2A, 4A .. up to B    --axis q_len=1024:65536:pow2
  An axis that is not named keeps the profile's values; --list shows axes, values and hypotheses.
  If the --axis options leave a single shape and name no tile, only the default tile for that shape runs, with the
  tuned variant unless --axis names `variant`. --dump-output without a tile takes the default tile, too.

TABLE
  One line per configuration. Axes that have one value in all configurations stand above the table. If the table would
  be wider than the terminal (without a terminal: $COLUMNS, or 100 characters), axes that have one value in nearly all
  configurations leave the table, too: this value stands above the table, and the column `also` names the axis and the
  value in the other lines. If this is not enough, the last columns are left out. Empty columns do not appear.
  time         median device time of one run of the case's kernels, with the caches as the previous run left them. For a
               memory-bound case: with caches flushed before each sample. For a case that launches nothing: the time
               of the case's work on the host. +-: half the 95 % confidence interval of the median
  vs           time over the time of the fastest case that differs only in its choices (tile, variant). With
               --baseline: time over the time of the fastest case that has this value and differs otherwise only in
               its choices
  status       wrong, failed, timeout or oom; empty for a case that is ok. '!': the device reported throttling
  GFLOP/s      or TFLOP/s: work over time; in a causal case only unmasked pairs count
  matrix_%     TFLOP/s in percent of the arithmetic rate that this run measured on the device for the dtype
  cold         median device time with caches flushed before each sample, in the full profile. Empty for a
               memory-bound case, whose column `time` has this time
  GB/s         for a memory-bound case: the bytes of all inputs and outputs, each counted once, over the time
  copy_%       GB/s in percent of the copy rate that this run measured on the device
  max_abs      for a case that was only checked: largest difference from the double-precision oracle
  More columns with --columns all:
  host         median time of one run of the case's kernels from submit to completion, as the host sees it
  hot_GB/s     GB/s with warm caches, also of cases that are not memory-bound
  hot_copy_%   hot_GB/s in percent of the copy rate
  cv_%         standard deviation over mean of all samples, in percent
  n            number of samples
  stop         why sampling ended: ci (interval narrow enough), max (enough samples), budget, interrupted
  error        largest difference from the double-precision oracle

ANSWER
  What to take in each case, of how many options, by this run alone; kb decisions has the same rows by all recorded
  runs. An option is as good as the fastest, unless it is expected to take over 2 % longer in the next run. "1.10x" is a
  time over the time of what to take. --verdicts prints the verdict on each claim.

EXIT STATUS
  0    done; also after a replay that prints DIFFERS, and if some cases are skipped
  1    a case was wrong, failed or did not end; an allocation failed; a process of --processes could not start, or ended
       by a signal or with an error; or a record or stdout could not be written
  2    bad arguments: one line names the argument and says what is allowed
  3    the device, or a library it needs, is not there
  4    no case of the selection can run here; one line has the commonest reason
  130  interrupted; everything measured so far is kept and shown, and --resume goes on from there
)";

void parse_shard(const std::string& text, Options& options) {
  const size_t slash = std::min(text.find('/'), text.size());
  const auto index = to_number<int>(std::string_view(text).substr(0, slash));
  const auto count = to_number<int>(std::string_view(text).substr(std::min(slash + 1, text.size())));
  if (!index || !count || *index < 1 || *index > *count) {
    throw BadInput(fmt::format("--shard {}: not allowed; I/N with 1 <= I <= N, as in 2/4", text));
  }
  options.shard_index = *index;
  options.shard_count = *count;
}

std::string one_of(const std::string& option, const std::string& text, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  throw BadInput(fmt::format("{} {}: not allowed; {}", option, text, fmt::join(allowed, " or ")));
}

/// Whether two paths name one regular file, or one file that does not exist yet.
bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(a, error) && !fs::is_regular_file(a, error)) return false;  // a pipe or /dev/null keeps nothing
  return fs::equivalent(a, b, error) || fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

/// Throws BadInput if the run would write to a file that it reads. Also throws if --dump-output names a file of
/// records, or if --out names the file of samples.
void refuse_overwriting(const Options& options) {
  const std::pair<std::string, std::string> outputs = {"--dump-output", options.dump_output},
                                            findings = {"--out", options.findings_path},
                                            measurements = {"--measurements", options.measurements_path},
                                            samples = {"the samples file of --measurements", options.samples_path()};
  std::vector<std::pair<std::string, std::string>> inputs = {{"--input", options.input}};
  inputs.insert(inputs.end(), options.files.begin(), options.files.end());
  const auto refuse = [](const auto& written, const auto& other) {
    if (written.second.empty() || other.second.empty() || !same_file(written.second, other.second)) return;
    throw BadInput(
        fmt::format("{} {}: {} names the same file; name another file", written.first, written.second, other.first));
  };
  for (const auto& written : {outputs, findings, measurements, samples}) {
    for (const auto& input : inputs) refuse(written, input);
  }
  for (const auto& records : {findings, measurements, samples}) refuse(outputs, records);
  refuse(findings, samples);
}

}  // namespace

std::string Options::samples_path() const {
  const std::filesystem::path path = measurements_path;
  std::error_code none;
  // Device files are recognised by their folder, because /dev/stdout may be a link to a regular file.
  const bool of_system = path.parent_path() == "/dev" || path.parent_path() == "/dev/fd";
  if (of_system || (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none))) return "";
  std::filesystem::path stem = path;
  if (stem.extension() == ".jsonl") stem.replace_extension();
  return stem.string() + ".samples.jsonl";
}

const Axis* Options::axis(std::string_view name) const {
  const auto place = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
  return place == axes.end() ? nullptr : &*place;
}

std::optional<Options> parse_options(int argc, const char* const* argv, const ExperimentSpec& spec) {
  Options options;
  options.arguments.assign(argv, argv + argc);
  // CLI11 takes values as texts, and this function parses them, so that every message says what is allowed.
  std::string shard, only;
  std::vector<std::string> axes;

  CLI::App app(spec.summary, spec.name);
  app.get_formatter()->column_width(32);
  app.footer(std::string(footer));
  add_help_and_version(app);
  const auto text = [&](const char* name, std::string& target, const char* type, const std::string& help) {
    return app.add_option(name, target, help)->type_name(type);
  };
  auto* device = text("--device", options.device, "SPEC", "where to run: " + Device::known_specs() + "; default cpu");
  auto* profile =
      text("--profile", options.profile, "NAME",
           "quick (default): minutes, the shapes that matter most\n"
           "full: an hour, 5 minutes on a GPU; all shapes, at least 50 rounds, in which cases take turns, "
           "also with cold caches" +
               std::string(spec.study_sweep ? "\nstudy: ten minutes, the cases of docs/study.md, mostly one "
                                              "head, f32, head_dim 64, 256 to 2048 tokens"
                                            : ""));
  auto* axis = app.add_option("--axis", axes, "values of an axis, see AXES; once per axis")
                   ->type_name("NAME=VALUES")
                   ->allow_extra_args(false);
  auto* list_option = app.add_flag("--list", options.list,
                                   "print axes, their values in this profile, and hypotheses; run nothing; "
                                   "with --json: print the claims as JSON lines");
  app.add_flag("--dry-run", options.dry_run,
               "print the cases that would run, and the reasons why other cases would not; run nothing")
      ->excludes(list_option);
  auto* only_option = text("--only", only, "verify", "check every case, measure none");
  number_option(app, "--budget", options.budget_s, 0.0, 1e7, "SECONDS",
                "time to measure for; default 120 (quick), 600 (study), 3600 (full), 300 (full on a GPU)");
  number_option(app, "--samples", options.samples, 1, 1'000'000, "N",
                "largest number of samples of a case, also in a comparison; default 200. "
                "A smaller N also shortens the measurement of the ceilings");
  number_option(app, "--max-launch", options.max_launch_s, 1e-6, 1e7, "SECONDS",
                "skip a case whose launch takes longer, or would take longer at the rate "
                "that the device reaches; default 0.5. With --input or --dump-output, a single case runs anyway");
  number_option(app, "--processes", options.processes, 1, 100, "N",
                "measure comparisons and the figures of claims in N new processes after the sweep; "
                "1: in this process; default 3, and 5 in the full profile on a cpu");
  app.add_flag("--task", options.task)->group("");  // the program gives this option to its own processes
  auto* seed_option = number_option(app, "--seed", options.seed, uint64_t{0}, UINT64_MAX, "N",
                                    "seed of the inputs and of the statistics; default 1");
  auto* input = text("--input", options.input, "FILE", "safetensors file with the inputs (q, k, v): fixes the shape");
  text("--dump-output", options.dump_output, "FILE",
       "write the outputs of the one selected case as a safetensors file");
  text("--out", options.findings_path, "FILE", "append findings here; default findings.jsonl");
  text("--measurements", options.measurements_path, "FILE", "append measurements here; default measurements.jsonl");
  std::vector<CLI::Option*> files;
  for (const FileOption& file : spec.file_options) {
    files.push_back(text(file.name.c_str(), options.files[file.name], "FILE", file.help));
  }
  auto* resume = app.add_flag("--resume", options.resume,
                              "go on with the run in --measurements: cases that it measured with the same "
                              "code, device and seed are not measured again, and comparisons in --out are "
                              "not made again");
  auto* shard_option =
      text("--shard", shard, "I/N", "only part I of N of the shapes; all parts together cover the shapes");
  auto* memory = number_option(app, "--threadgroup-memory", options.threadgroup_memory_bytes, size_t{1}, SIZE_MAX,
                               "BYTES", "lower the device's threadgroup memory, to explore a device that has less");
  auto* replay = text("--replay", options.replay, "ID",
                      "measure the recorded measurement or finding ID again, under its own case, seed "
                      "and device; the first 6 or more digits of the id are enough");
  auto* json = app.add_flag("--json", options.json,
                            "print measurements, findings and the answer as JSON lines instead of the table");
  std::string columns, baseline;
  auto* csv = app.add_flag("--csv", options.csv, "print the table as CSV, with all columns, and nothing else");
  csv->excludes(json);
  text("--columns", columns, "all", "all columns of the table, however wide");
  text("--filter", options.filter, "WORDS",
       "the table shows only the cases that have all of these words; a word is AXIS=VALUE, "
       "or any part of the case's text; hidden cases still count in the column `vs`");
  text("--baseline", baseline, "AXIS=VALUE",
       "in the column `vs`, compare each case with the fastest case that has this value "
       "and differs otherwise only in its choices");
  app.add_flag("--verdicts", options.verdicts, "print the verdict on each claim, too");
  app.add_flag("--quiet", options.quiet, "no progress");
  if (!parse_command_line(app, argc, argv)) return std::nullopt;

  one_of("--profile", options.profile,
         spec.study_sweep ? std::vector<std::string>{"quick", "full", "study"}
                          : std::vector<std::string>{"quick", "full"});
  if (*only_option) options.only_verify = !one_of("--only", only, {"verify"}).empty();
  if (!columns.empty()) options.all_columns = !one_of("--columns", columns, {"all"}).empty();
  if (!baseline.empty()) {
    try {
      options.baseline = parse_axis(baseline, spec.axes);
    } catch (const BadInput& error) {
      throw BadInput(fmt::format("--baseline {}: {}", baseline, error.what()));
    }
    if (options.baseline->values.size() != 1) {
      throw BadInput(fmt::format("--baseline {}: not allowed; one value, as in variant=naive", baseline));
    }
  }
  if (!shard.empty()) parse_shard(shard, options);
  if (*replay) {
    std::vector<CLI::Option*> others = {device, profile, axis,         only_option, seed_option,
                                        input,  resume,  shard_option, memory};
    others.insert(others.end(), files.begin(), files.end());
    for (const CLI::Option* other : others) {
      if (*other)
        throw BadInput(
            fmt::format("--replay takes the case and its settings from the record; leave {} out", other->get_name()));
    }
    const bool hex = options.replay.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!hex || options.replay.size() < min_replay_digits) {
      throw BadInput(fmt::format("--replay {}: not allowed; at least {} hex digits of a record's id", options.replay,
                                 min_replay_digits));
    }
  }
  if (*input && !spec.input_axes) throw BadInput(spec.name + " takes no --input");
  for (const std::string& named : axes) {
    Axis parsed = parse_axis(named, spec.axes);
    if (options.axis(parsed.name))
      throw BadInput(fmt::format("--axis {} is given twice; give it once, with all values", parsed.name));
    options.axes.push_back(std::move(parsed));
  }
  refuse_overwriting(options);
  return options;
}

namespace {

/// Gives sequences of more than `most` tokens `most` tokens.
void shorten(Sweep& sweep, int64_t most) {
  for (Block& block : sweep.blocks) {
    for (Axis& axis : block) {
      if (axis.name != "q_len" && axis.name != "kv_len") continue;
      for (AxisValue& value : axis.values) {
        if (auto* const tokens = std::get_if<int64_t>(&value)) *tokens = std::min(*tokens, most);
      }
    }
  }
}

}  // namespace

std::vector<std::vector<Case>> select_cases(const ExperimentSpec& spec, const Options& options,
                                            const DeviceInfo& info) {
  std::vector<Axis> named = options.axes;
  const auto fix = [&](const std::string& path, const std::vector<Axis>& axes) {
    for (const Axis& fixed : axes) {
      const Axis* other = options.axis(fixed.name);
      if (!other) {
        named.push_back(fixed);
      } else if (other->values != fixed.values) {
        std::vector<std::string> values;
        for (const AxisValue& value : fixed.values) values.push_back(to_string(value));
        throw BadInput(fmt::format("--axis {}: {} has {}={}; leave the axis out", fixed.name, path, fixed.name,
                                   fmt::join(values, ",")));
      }
    }
  };
  if (!options.input.empty()) fix(options.input, spec.input_axes(options.input));
  bool files = false;
  for (const FileOption& option : spec.file_options) {
    const std::string path = file_of(options.files, option.name);
    if (path.empty()) continue;
    fix(path, option.axes(path));
    files = true;
  }
  const bool study = options.profile == "study", of_file = files && spec.file_sweep;
  if (study && of_file) throw BadInput("--profile study: not allowed with a function of yours; quick or full");
  Sweep sweep = study     ? spec.study_sweep(info)
                : of_file ? spec.file_sweep(options.profile, info)
                          : spec.sweep(options.profile, info);
  if (options.profile == "quick") shorten(sweep, sweep_span(info).most_tokens);
  const auto is_named = [&](const std::string& name) {
    return std::ranges::find(named, name, &Axis::name) != named.end();
  };
  if (std::ranges::any_of(spec.narrowing_axes, is_named)) {
    std::erase_if(sweep.blocks, [&](const Block& block) {
      return std::ranges::any_of(
          block, [&](const Axis& axis) { return spec.narrowing_axes.contains(axis.name) && !is_named(axis.name); });
    });
  }
  for (const Axis& axis : named) override_axis(sweep, axis);
  const auto complete = [&](Case& config) {
    if (spec.complete) spec.complete(config, info);
  };
  std::vector<Case> cases = expand(sweep, spec.axes, complete);

  // The tile axes are the compared axes without `variant`: naming the variant leaves the choice of the tile open.
  const auto compared = [&](const std::string& axis) {
    return std::find(spec.compared_axes.begin(), spec.compared_axes.end(), axis) != spec.compared_axes.end();
  };
  const bool shape_named =
      std::any_of(named.begin(), named.end(), [&](const Axis& axis) { return !compared(axis.name); });
  const bool tile_named = std::any_of(named.begin(), named.end(),
                                      [&](const Axis& axis) { return compared(axis.name) && axis.name != "variant"; });
  const bool one_case = !options.dump_output.empty() || (shape_named && group(cases, spec.compared_axes).size() == 1);
  if (spec.default_tile && one_case && !tile_named) {
    for (Block& block : sweep.blocks) {
      std::erase_if(block, [&](const Axis& axis) {
        return compared(axis.name) && !(axis.name == "variant" && options.axis("variant"));
      });
    }
    const auto variant =
        std::find_if(spec.axes.begin(), spec.axes.end(), [](const AxisInfo& axis) { return axis.name == "variant"; });
    if (variant != spec.axes.end() && !options.axis("variant") &&
        std::find(variant->choices.begin(), variant->choices.end(), "tuned") != variant->choices.end()) {
      override_axis(sweep, {"variant", {std::string("tuned")}});
    }
    cases = expand(sweep, spec.axes, complete);
  }
  if (!options.dump_output.empty() && cases.size() != 1) {
    throw BadInput(fmt::format(
        "--dump-output writes the output of one case; {} cases are selected, which differ in {}; name one value of "
        "each of these axes with --axis",
        cases.size(), fmt::join(varying_axes(cases), ", ")));
  }
  return shard(group(cases, spec.compared_axes), options.shard_index, options.shard_count);
}

std::vector<std::string> unmet_values(const ExperimentSpec& spec, const Options& options, const DeviceInfo& info,
                                      const std::vector<std::vector<Case>>& groups) {
  std::vector<std::string> sentences;
  const auto compare = [&](const std::vector<std::vector<Case>>& with, const char* sentence) {
    for (const Axis& axis : options.axes) {
      std::set<std::string> values;
      for (const std::vector<Case>& cases : with) {
        for (const Case& config : cases) values.insert(config.value_text(axis.name));
      }
      for (const AxisValue& value : axis.values) {
        if (values.empty() || values.contains(to_string(value))) continue;
        sentences.push_back(fmt::format(fmt::runtime(sentence), axis.name, to_string(value), fmt::join(values, ", ")));
      }
    }
  };
  compare(groups, "--axis {}={}: no case has this value, because of the other axes; the cases have {}");
  if (options.profile != "study") return sentences;
  Options own = options;
  own.axes.clear();
  own.dump_output.clear();
  compare(select_cases(spec, own, info),
          "--axis {}={}: no case of the study has this value; they have {} (docs/study.md: which cases answer it)");
  return sentences;
}

}  // namespace attn
