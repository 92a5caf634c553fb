#include "common/records/questions.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace attn {
namespace {

bool is(const Case& config, std::string_view axis, std::string_view value) {
  return !config.has(axis) || config.value_text(axis) == value;
}

/// Form of linear attention whose options can be compared: no extra work in any of them.
bool is_plain_form(const Case& config) {
  const bool form = config.has("variant") && (config.text("variant") == "phases" || config.text("variant") == "fused");
  const bool own = config.has("feature") && config.text("feature").starts_with("file-");  // the user's feature map
  return form && is(config, "lengths", "equal") && config.value_text("value_dim") == config.value_text("head_dim") &&
         is(config, "normalised", "0") && (own || is(config, "feature", "identity")) && is(config, "layout", "bhsd") &&
         is(config, "state", "0") && is(config, "segments", "0");
}

double number_at(const Json& values, const char* field) {
  return values.is_object() && values.contains(field) && values[field].is_number() ? values[field].get<double>()
                                                                                   : std::nan("");
}

double seconds_to_make(const Measurement& result) {
  const double generated = number_at(result.values, "compile_s");
  return std::isnan(generated) ? number_at(result.pipeline, "compile_s") : generated;
}

}  // namespace

bool tells(const Told& told, const std::string& hypothesis, const std::string& metric) {
  return (told.metric.empty() || told.metric == metric) &&
         (told.hypotheses.empty() || std::ranges::find(told.hypotheses, hypothesis) != told.hypotheses.end());
}

const std::vector<Question>& questions() {
  static const std::vector<Question> list = {
      {.experiment = "proto1_flash",
       .id = "tile",
       .title = "Which tile (Br x Bc)?",
       .choices = {{.what = "",
                    .axes = {"block_r", "block_c"},
                    .between = "x",
                    .takes = [](const Case& config) { return is(config, "variant", "tuned"); },
                    .at_least = 3}},
       .example_axes = {{"dtype", "bf16"}, {"head_dim", "128"}, {"causal", "1"}}},
      {.experiment = "proto2_stitching",
       .id = "function",
       .title = "Can the inner loop call a function?",
       // `chain` has any amount of work. The claim break_even says from how much on a call pays.
       .choices = {{.what = "form, grain",
                    .axes = {"form", "grain"},
                    .own_axes = {"variant", "block_r", "block_c"},
                    .takes = [](const Case& config) { return config.value_text("function") != "chain"; },
                    .at_least = 3}},
       .told = {{.metric = "time with the form / time with the text in place",
                 .what = "{form}, each {grain} / text in place",
                 .take = "{form}",
                 .other = "text in place"},
                {.hypotheses = {"break_even"}, .what = "{form}, each {grain}: costs at most 1 % from"}},
       .example = "pointer, each element"},
      {.experiment = "proto3_paged",
       .id = "cache",
       .title = "Which key/value cache?",
       .choices = {{.what = "page size",
                    .axes = {"page_size"},
                    .own_axes = {"block_c"},
                    .takes = [](const Case& config) { return config.integer("page_size") > 0; }}},
       .told = {{.hypotheses = {"paging"},
                 .what = "decoding: pages of {page_size} / contiguous",
                 .take = "pages",
                 .other = "contiguous",
                 .over = "page_size"},
                {.hypotheses = {"prefill_paging"},
                 .what = "prompts: pages of {page_size} / contiguous",
                 .take = "pages",
                 .other = "contiguous",
                 .over = "page_size"},
                {.hypotheses = {"several_tokens"}, .what = "decoding: {q_len} new tokens / one"},
                {.hypotheses = {"cache_layout"}, .what = "layout: hnd / nhd", .take = "hnd", .other = "nhd"},
                {.hypotheses = {"eight_bits"},
                 .what = "bits: {cache_dtype} / 16 bits or more",
                 .take = "{cache_dtype}",
                 .other = "16 bits or more"},
                {.hypotheses = {"workers"},
                 .what = "workers: the rule / the fastest number",
                 .take = "the rule",
                 .other = "try numbers"},
                {.hypotheses = {"waste"}, .what = "empty slots, pages of 16", .unit = "%"}},
       .example = "page size",
       .example_axes = {{"lengths", "chat"}}},
      {.experiment = "proto4_constants",
       .id = "variants",
       .title = "What do compiled variants cost, and what does a constant save?",
       .told = {{.hypotheses = {"cost"}, .what = "compile a variant of {kernel}"},
                {.hypotheses = {"disk_hit"}, .what = "load a variant from disk"},
                {.hypotheses = {"archive_load"}, .what = "load an archive"},
                {.hypotheses = {"archive_create"}, .what = "write an archive"},
                {.hypotheses = {"memory_hit"}, .what = "look a variant up in memory"},
                {.hypotheses = {"run_time"},
                 .what = "{kernel}: {read} read at run time / compiled in",
                 .take = "run time",
                 .other = "constant"}},
       .example = "compile a variant of tuned"},
      {.experiment = "proto5_codegen",
       .id = "generator",
       .title = "A generator, or by hand?",
       .choices = {{.what = "attention",
                    .axes = {"generator"},
                    .takes = [](const Case& config) { return is(config, "work", "attention"); },
                    .at_least = 3}},
       .counted = {{.axes = {"generator", "dtype"},
                    .takes = [](const Case& config) { return is(config, "work", "attention"); },
                    .numbers = {{"lines",
                                 [](const Measurement& result) { return number_at(result.values, "source_lines"); }},
                                {"s", seconds_to_make}}}},
       .example_axes = {{"dtype", "bf16"}, {"head_dim", "128"}, {"causal", "1"}}},
      {.experiment = "proto6_linear",
       .id = "linear",
       .title = "From when on linear attention, and in which form?",
       .choices = {{.what = "form, chunk",
                    .axes = {"variant", "scan", "chunk"},
                    .takes = is_plain_form,
                    .from = "crossover_256"}},
       .told = {{.hypotheses = {"crossover_256"}, .what = "faster than softmax attention from"},
                {.hypotheses = {"decode_break_even"}, .what = "a step of decoding is faster than a cache of"}},
       .example = "faster than softmax attention from",
       .example_axes = {{"causal", "1"}, {"dtype", "bf16"}, {"head_dim", "128"}, {"heads", "32"}}},
      {.experiment = "proto7_variants",
       .id = "modifiers",
       .title = "What does each modifier cost?",
       .told = {{.metric = "time with the modifier / time without", .what = "{claim} / without"},
                {.metric = "time with the rule / time without, over the share of pairs that it leaves",
                 .what = "{claim} / its share of the pairs"},
                {.hypotheses = {"rope_before"}, .what = "RoPE, a launch before / without RoPE"},
                {.hypotheses = {"rope_fused"},
                 .what = "RoPE: inside / a launch before",
                 .take = "inside",
                 .other = "before"},
                {.hypotheses = {"gqa_copy"},
                 .what = "grouped heads: copies / an index",
                 .take = "copies",
                 .other = "an index"},
                {.hypotheses = {"score_run_time", "score_noinline"},
                 .what = "score by {score_by} / by constants",
                 .take = "{score_by}",
                 .other = "constants"}},
       .example = "soft_cap"},
      {.experiment = "proto8_extension",
       .id = "calls",
       .title = "What does a call cost?",
       .told = {{.hypotheses = {"c_overhead"}, .what = "C interface"},
                {.hypotheses = {"dlpack_overhead"}, .what = "C interface, new descriptions of tensors"},
                {.hypotheses = {"concept_overhead"}, .what = "C++ concept"},
                {.hypotheses = {"torch_overhead"}, .what = "PyTorch's operator"},
                {.hypotheses = {"copies_overhead"}, .what = "C interface, with copies"},
                {.hypotheses = {"break_even"}, .what = "C interface / direct launch (1.01: a cost of 1 %)"},
                {.hypotheses = {"first_call_compiler"}, .what = "first call, compiled"},
                {.hypotheses = {"first_call_disk"}, .what = "first call, from disk"},
                {.hypotheses = {"first_call_archive"}, .what = "first call, from an archive"}},
       .example = "C interface"}};
  return list;
}

}  // namespace attn
