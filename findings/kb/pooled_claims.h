// The figure and the verdict of a claim, from all runs that can be pooled.
#pragma once

#include <vector>

#include "findings/kb/runs.h"

namespace attn::kb {

/// Returns one record pooled/1 for each claim of the findings, in order of claim_key. Pools all runs that have the
/// code and the conditions of the claim's latest finding, whether or not their verdicts agree. Of several findings of
/// the claim in one run, the last one counts. Pools runs on quiet machines only, or only those on loaded machines
/// (Run::loaded). Fields:
///   claim_key   of its findings
///   experiment, device, subject                          as in a finding
///   hypothesis, metric, op, threshold                    of the hypothesis; `hypothesis` is its id
///   title, verdict, advice                               by the pooled estimate
///   estimate    fields of the estimate of a finding
///   latest, ts  the id of the latest finding, and its time
///   findings    the ids of the pooled findings
///   others      the ids of the claim's other findings
///   measured    measured_by() of the latest finding: claims with an equal `measured` judge one measurement
///   wrong       the probability that the next run's figure and the pooled figure lie on different sides of the
///               threshold; 0 if exact
///   power_capped  whether the device reached its power limit in one of the pooled runs
///   advised     whether the advice may be given: the verdict is not inconclusive, and the claim is exact or selected
///               by discoveries()
///   published   published_answers() to the `statements` of studies (published.h)
std::vector<Json> pooled_claims(const std::vector<Record>& records, bool loaded = false,
                                const std::vector<Json>& statements = {});

/// Selects claims by Benjamini and Hochberg's rule (1997, weighted): the largest set of which a share of at most
/// `share` is expected to be wrong. `wrong` has the probability that a claim is wrong. The `weights` of the claims that
/// judge one measurement add up to 1. Returns true for each claim in the set.
std::vector<bool> discoveries(const std::vector<double>& wrong, const std::vector<double>& weights,
                              double share = 0.05);

/// Returns the expected number of wrong verdicts among pooled claims. The claims that judge one measurement count as
/// one verdict. Inconclusive claims and exact claims do not count.
double expected_wrong(const std::vector<Json>& claims);
/// Returns the number of measurements that the verdicts of expected_wrong() judge.
size_t measurements_of(const std::vector<Json>& claims);

}  // namespace attn::kb
