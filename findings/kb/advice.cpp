#include "findings/kb/advice.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace attn::kb {

std::vector<bool> discoveries(const std::vector<double>& wrong, double share) {
  std::vector<size_t> order(wrong.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return wrong[i]; });
  size_t kept = 0;
  for (size_t rank = 1; rank <= order.size(); ++rank) {
    const double most = share * static_cast<double>(rank) / static_cast<double>(order.size());
    if (wrong[order[rank - 1]] <= most) kept = rank;
  }
  std::vector<bool> found(wrong.size());
  for (size_t i = 0; i < kept; ++i) found[order[i]] = true;
  return found;
}

double wrong_verdict(const Record& finding) {
  const Run run = run_of(finding, {});
  if (run.exact) return 0;
  const Json data = finding.json().at("data");
  const Json& estimate = data.at("estimate");
  Pooled pooled;
  if (estimate.contains("next_lo")) {
    pooled.value = estimate.at("value");
    pooled.next_lo = estimate.at("next_lo");
    pooled.next_hi = estimate.at("next_hi");
    pooled.freedom = estimate.at("freedom");
  } else {
    const Spread spread = spread_of(finding.device, finding.experiment, run.kind);
    pooled = pool({&run.session, 1}, spread, run.relative, run.unit);
  }
  return 1 - same_side(pooled, data.at("hypothesis").at("threshold"), run.relative);
}

double expected_wrong(const std::vector<Record>& findings) {
  double sum = 0;
  for (const Record& finding : findings) {
    const bool decided = finding.state == "supported" || finding.state == "refuted";
    if (finding.kind == "finding" && decided) sum += 1 - finding.confidence;
  }
  return sum;
}

Advices advices(const std::vector<Record>& records) {
  std::map<std::string, const Record*> latest;  // by pooling_key()
  std::vector<std::string> order;
  for (const Record& record : records) {
    if (record.kind != "finding") continue;
    const std::string key = pooling_key(record.json());
    const Record*& known = latest[key];
    if (!known) order.push_back(key);
    if (!known || known->ts <= record.ts) known = &record;
  }
  Advices result;
  std::vector<double> wrong;
  std::vector<Advised> all;
  for (const std::string& key : order) {
    const Record& finding = *latest.at(key);
    if (finding.state == "inconclusive") continue;
    wrong.push_back(wrong_verdict(finding));
    all.push_back({finding.json().at("data").value("advice", ""), finding, wrong.back()});
  }
  const std::vector<bool> kept = discoveries(wrong);
  std::vector<Record> given;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].text.empty()) continue;
    if (!kept[i]) {
      ++result.withheld;
      continue;
    }
    given.push_back(all[i].finding);
    result.given.push_back(std::move(all[i]));
  }
  result.expected_wrong = expected_wrong(given);
  return result;
}

}  // namespace attn::kb
