// Tests that the questions and the registered claims belong together.
#include "common/records/questions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "common/base/json.h"
#include "common/source/kernel_source.h"

namespace attn {
namespace {

/// The claims that decide nothing for somebody who writes a kernel, or nothing that another row does not say.
const std::map<std::string, std::string> without_row = {
    {"proto1_flash",
     "worst_tile best_tile default_tile tile_16x64 bc80 wider_heads scaling bf16 causal layout ladder ceiling "
     "ceiling_causal ceiling_16_bit ceiling_16_bit_causal"},
    {"proto2_stitching", "call_ns stitch_or_constants"},
    {"proto3_paged",
     "paging_10 paging_25 paging_9 rate read_rate reduce page_order packing int8_error alibi soft_cap window "
     "append_fused append_cost prefill_fused cascade viability"},
    {"proto4_constants",
     "scaling startup_100ms startup_1s start_disk start_archive disk_speedup archive_speedup workers pch"},
    {"proto5_codegen",
     "slower published viable search search_elsewhere inner_loop generation lines_compiler lines_triton lines_tilelang "
     "lines_halide_gpu lines_halide_tuned schedule autoscheduler"},
    {"proto6_linear",
     "fused scan_form segments chunk_64 chunk_128 host_scan_share device_scan flat floor rate_64 rate_128 scaling "
     "memory gate_head gate_token gate_channel channel_over_token normalised feature decode_rate crossover_4096 "
     "equivalence error_growth"},
    {"proto7_variants",
     "window_by_list window_lists sparse_lists gqa_index rope_share rope_copy expand_share same_tile"},
    {"proto8_extension", "dispatch allocations"}};

TEST(QuestionTest, EachClaimHasARowOrIsNamedHere) {
  std::map<std::string, std::map<std::string, std::string>> metrics;  // by experiment and hypothesis
  std::ifstream file(source_root() + "/findings/claims.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json claim = parse_json(line);
    metrics[claim.at("experiment")][claim.at("hypothesis")] = claim.at("metric");
  }
  for (const Question& question : questions()) {
    std::set<std::string> silent, named;
    std::istringstream words(without_row.at(question.experiment));
    for (std::string word; words >> word;) silent.insert(word);
    for (const auto& [hypothesis, metric] : metrics[question.experiment]) {
      const bool told =
          std::ranges::any_of(question.told, [&](const Told& one) { return tells(one, hypothesis, metric); });
      EXPECT_NE(told, silent.contains(hypothesis)) << question.experiment << ": " << hypothesis;
    }
    named = silent;
    for (const Told& told : question.told) {
      named.insert(told.hypotheses.begin(), told.hypotheses.end());
      EXPECT_TRUE(std::ranges::any_of(metrics[question.experiment],
                                      [&](const auto& claim) { return tells(told, claim.first, claim.second); }))
          << told.what << ": no claim";
    }
    for (const std::string& hypothesis : named) {
      EXPECT_TRUE(metrics[question.experiment].contains(hypothesis)) << hypothesis << " is no claim";
    }
  }
}

}  // namespace
}  // namespace attn
