// The decisions that somebody with a kernel to write has to make, as one table for each question: what to take in which
// case, by measurements and by claims. The answer at a run's end, `kb decisions`, the pages of the devices, README and
// the report print these tables; no other program decides what to take.
//
// A table is an object:
//   question, title   "tile", and the question in words
//   experiment        the experiment whose runs answer the question; `device` is the device
//   heads             the columns that some row fills: a part of "what", "case", "take", "of", "others", "as good",
//                     "figure", "runs", "kernels of", "record", in this order
//   rows              an array, the most useful rows first
// A row has `cells`, a text for each column, and the values from which they are made:
//   what              what the row compares or counts; "" where the table has only one subject
//   case              the case, for people: "bf16, D=128, causal, 4 x 16 heads, 4096 tokens"
//   where             the case, as axes with their values. An axis over which neighbouring cases with one answer were
//                     merged (a length, or Told::over) has an array of values. Cases that differ in type, head_dim,
//                     mask, batch or heads are never merged.
//   take              what to take: of the options that are as good, the default, or else the one that is as good in
//                     the most cases of the table; "either" where both of two are as good; "" for a figure that is no
//                     choice
//   as_good           options that are as good as `take`: neither their next run, nor that of a faster option, is
//                     expected to take more than 1.02 times the time of the fastest
//   default           {"option", "ratio", "next_lo", "next_hi"}: the option that the experiment chooses by itself, and
//                     its time / the time of `take`, with the interval of the next run; null where nobody measured it
//   slower            [the same]: other options, the fastest first
//   options           the number of options that were compared; 0 without a choice
//   figure            the rate or the time of `take`; or the figure of a claim, with the interval of the next run in
//                     brackets
//   low, high         the lowest and the highest figure; null without a figure
//   tflops, share     the rate of `take`, and its share of the arithmetic ceiling in per cent; null if not known
//   runs              the number of runs that are pooled in the figure: those that compared `take` with other options
//   day               of the latest of them, "2026-11-26"
//   today             whether the kernels of the row are those of the source tree. If not, every reader must say
//                     "kernels of DAY"
//   example           whether README shows the row, if it is of today's kernels
//   id                of a measurement or a finding, for `kb show`
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/records/comparison.h"
#include "common/records/measurement.h"
#include "common/records/pool.h"

namespace attn {

/// What one run measured of one experiment on one device.
struct MeasuredRun {
  std::string id, ts = {};  // `ts`: when it began, or of a record of it
  std::vector<Measurement> results = {};
  std::vector<Comparison> comparisons = {};
};

struct DecisionInput {
  std::string experiment, device;             // `device` as in findings
  std::vector<const MeasuredRun*> runs = {};  // in order of time
  /// Claims as kb pool prints them, each also with "pair" (the cases of baseline and contender, or null). A claim with
  /// "today" false is of other kernels than today's.
  std::vector<Json> claims = {};
  /// Whether the kernels of a measurement are today's. Empty: all are.
  std::function<bool(const Measurement&)> today = {};
  /// Sets missing axes of a case to their defaults. Empty: unknown. The claim `default_tile` names the default, too.
  std::function<void(Case&)> complete = {};
  /// The axes of the choice of an experiment without a question.
  std::vector<std::string> compared = {};
};

/// Returns the table of the experiment's question. An experiment without a question has one with a choice among
/// `compared`, and with all of its claims.
Json decisions(const DecisionInput& input);

/// Makes a claim for DecisionInput from a finding: its own figure and verdict, of today's kernels.
Json claim_of(const Json& finding);
/// Returns the cases of a finding's baseline and contender, as a JSON array; null if the finding is about no pair.
Json pair_of(const Json& finding);

/// A table as a text: a line for each row, of at most `width` characters with more below it, and about `most_lines` in
/// all. The last line says how many rows are left out.
std::string decisions_text(const Json& table, size_t width, size_t most_lines);

}  // namespace attn
