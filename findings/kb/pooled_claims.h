// The figure and the verdict of a claim by all runs that can be pooled.
#pragma once

#include <vector>

#include "findings/kb/runs.h"

namespace attn::kb {

/// One record pooled/1 for each claim (pooling_key()) among the findings, in order of the keys. The latest finding of
/// the claim says which code and which conditions count: all runs with the same code and conditions are pooled, also
/// those that disagree. Fields:
///   claim_key, experiment, device, subject, hypothesis   as in a finding
///   title, verdict, advice, confidence                   by the pooled estimate
///   estimate    as in a finding/2
///   latest      the id of the latest finding
///   findings    the ids of the findings that are pooled
///   others      the number of findings with other code or other conditions
///   wrong       the probability that the next run's figure lies on the other side of the threshold; 0 if exact. It has
///               no upper limit as a confidence has: such a limit (0.8 with one session) stands for what the intervals do
///               not know
///   advised     whether the advice may be given: the claim is decided, and among discoveries() by `wrong`
std::vector<Json> pooled_claims(const std::vector<Record>& records);

/// The largest set of claims in which a share of at most `share` is expected to be wrong, by Benjamini and Hochberg's
/// rule: true for each claim in the set. `wrong` has the probability of each claim to be wrong.
std::vector<bool> discoveries(const std::vector<double>& wrong, double share = 0.05);

/// The number of wrong verdicts to expect among pooled claims: the sum of 1 - confidence over the claims that are
/// decided and not exact.
double expected_wrong(const std::vector<Json>& claims);

}  // namespace attn::kb
