// The tables of common/records/decisions.h, from the records of the knowledge base.
#pragma once

#include <vector>

#include "findings/kb/store.h"

namespace attn::kb {

/// Returns the table of each question (common/records/decisions.h) for each device, by the name of the device, also
/// without rows where no run measured the question. A table has two fields more:
///   older    the ids of runs that measured a kernel whose source code has changed since
///   loaded   the number of measurements that are left out, because other programs used the machine
/// `pooled`: the pooled_claims() of the records.
std::vector<Json> decision_tables(const std::vector<Record>& records, const std::vector<Json>& pooled);

}  // namespace attn::kb
