// The tables of common/records/decisions.h, from the records of the knowledge base.
#pragma once

#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns the table of each question (common/records/decisions.h) for each device, by the name of the device, with the
/// field `older`: the ids of runs that measured a kernel whose source code has changed since. Also returns a table
/// without rows where no run measured the question. Measurements of a machine that was busy do not count.
/// `pooled`: the pooled_claims() of the records.
std::vector<Json> decision_tables(const std::vector<Record>& records, const std::vector<Json>& pooled);

}  // namespace attn::kb
