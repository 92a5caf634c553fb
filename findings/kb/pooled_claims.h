// The figure and the verdict of a claim, from all runs that can be pooled.
#pragma once

#include <vector>

#include "findings/kb/runs.h"

namespace attn::kb {

/// Returns one record pooled/1 for each claim (pooling_key()) among the findings, in order of the keys. The latest
/// finding of the claim says which code and which conditions count: all runs with the same code and conditions are
/// pooled, also runs that disagree. Fields:
///   claim_key, experiment, device, subject, hypothesis   as in a finding
///   title, verdict, advice, confidence                   by the pooled estimate
///   estimate    value, ci_lo, ci_hi, next_lo, next_hi, tau, processes, sessions, machines and scale as in
///               finding/2, the second format of findings
///   latest      the id of the latest finding
///   findings    the ids of the findings that are pooled
///   others      the ids of the findings with other code or other conditions
///   measured    measured_by() of the latest finding: claims with an equal `measured` judge one measurement
///   wrong       the probability that the next run's figure and the pooled figure lie on different sides of the
///               threshold; 0 if exact. A confidence has an upper limit (0.8 with one session) for errors that the
///               intervals do not show. `wrong` has no such limit, because with the limit discoveries() would select no
///               claim
///   advised     whether the advice may be given: the claim is exact, or discoveries() selects the claim by `wrong`.
///               For discoveries() an undecided claim counts as wrong
std::vector<Json> pooled_claims(const std::vector<Record>& records);

/// Selects the largest set of claims of which at most the share `share` is expected to be wrong, by Benjamini and
/// Hochberg's rule. `wrong` has, for each claim, the probability that the claim is wrong. `weights` says how much each
/// claim counts: the claims of one measurement have the sum 1 (Benjamini and Hochberg 1997, weighted). Returns true for
/// each claim in the set.
std::vector<bool> discoveries(const std::vector<double>& wrong, const std::vector<double>& weights,
                              double share = 0.05);

/// Returns the number of wrong verdicts to expect among pooled claims, where each measurement counts once. Claims that
/// are undecided or exact count nothing.
double expected_wrong(const std::vector<Json>& claims);

}  // namespace attn::kb
