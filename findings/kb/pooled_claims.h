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
///   title, verdict                                       by the pooled estimate
///   estimate    fields of the estimate of a finding
///   latest, ts  the id of the latest finding, and its time
///   findings    the ids of the pooled findings
///   others      the ids of the claim's other findings
///   today       false if a kernel of the latest finding has other source code in the source tree today
///   pair        the cases of its baseline and its contender; null if it is about no pair
///   wrong       the probability that the next run's figure and the pooled figure lie on different sides of the
///               threshold; 0 if exact
///   power_capped  whether the device reached its power limit in one of the pooled runs
///   published   published_answers() to the `statements` of studies (published.h)
std::vector<Json> pooled_claims(const std::vector<Record>& records, bool loaded = false,
                                const std::vector<Json>& statements = {});

}  // namespace attn::kb
