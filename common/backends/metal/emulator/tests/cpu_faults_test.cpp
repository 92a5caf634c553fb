// Faults planted in Metal's kernels: each fault must be found by the check that is meant for this fault. The same
// kernels without a fault must raise no alarm; the long tests run these kernels in six orders of threads.
#include <regex>

#include "common/backends/metal/emulator/tests/faults.h"
#include "common/testing/metal.h"
#include "common/testing/mutated_sources.h"

namespace attn {
namespace {

using test::FoundBy;
using test::MetalFault;

std::string line_for(const std::string& device, const std::string& axes) {
  std::string line = "--device " + device + " --only verify";
  std::istringstream words(axes);
  for (std::string axis; words >> axis;) line += " --axis " + axis;
  return line;
}

// Returns a regular expression for what the program prints. For most faults, this is the emulator's message: the kind
// of the fault, the thread, and a line number in the faulty file or in metal.h.
std::string expected(const MetalFault& fault) {
  const std::string file = fault.file.substr(fault.file.rfind('/') + 1);
  const std::string at = "; (" + std::regex_replace(file, std::regex("\\."), "\\.") + "|metal\\.h):[0-9]+, [a-z_]+, " +
                         "threadgroup \\([0-9, ]+\\), order [0-9]+";
  const std::string thread = "thread [0-9]+ \\(simdgroup [0-9]+, lane [0-9]+\\)", begin = "metal:emulated: ";
  const std::string touches = thread + " (reads|writes) word [0-9]+ \\(byte [0-9]+\\) of ";
  const std::string other = ", which (another thread|" + thread + ").* (read|wrote) at .*:[0-9]+, and no barrier .*";
  switch (fault.found_by) {
    case FoundBy::race_in_threadgroup:
      return begin + "race: " + touches + "(threadgroup\\(0\\)|found)" + other + at;
    case FoundBy::race_on_device:
      return begin + "race: " + touches + "a buffer of [0-9]+ bytes" + other + at;
    case FoundBy::coherence:
      return begin + "coherence: " + touches + "a buffer of [0-9]+ bytes, which " + thread + " of threadgroup .*" + at;
    case FoundBy::barrier:
      return begin + "divergence: .*thread.* barrier .*" + at;
    case FoundBy::divergence:
      return begin + "divergence: .*thread.* (a function over all lanes|a load or store of a matrix).*" + at;
    case FoundBy::unwritten:
      return begin + "unwritten: " + touches + "(threadgroup\\(0\\)|found), which no thread has written" + at;
    case FoundBy::outside:
      return begin + "bounds: " + thread + " (reads|writes) [0-9]+ bytes of (device|threadgroup) memory at word .*, " +
             "which has [0-9]+ bytes" + at;
    case FoundBy::much_memory:
      return begin + "limits: [a-z_]+: a threadgroup needs [0-9]+ bytes of threadgroup memory; at most 32768";
    case FoundBy::fast_math:
      return begin + "number: " + thread + " has infinity or NaN in a (comparison|division|subtraction|multiplic).*" +
             at;
    case FoundBy::address_space:
      return begin + "bounds: " + thread + " writes 4 bytes of device memory at an address of threadgroup\\(0\\), " +
             "which is threadgroup memory" + at;
    case FoundBy::constant:
      return "does not compile:\\s*the function constant MOST_SCORE \\(7\\) has no value";
    case FoundBy::compiler:
      return file + ":[0-9]+:[0-9]+: error: cannot initialize .*'device float \\*const'.*'threadgroup float \\*'";
    case FoundBy::later_version:
      return file + ":[0-9]+:[0-9]+: error: 'atomic_thread_fence' is unavailable: it needs Metal 3\\.2";
    case FoundBy::oracle:
      return "0 ok, 1 wrong, 0 skipped";
  }
  return "";
}

class FaultTest : public test::MetalProgramTest, public testing::WithParamInterface<MetalFault> {
 protected:
  FaultTest() : MetalProgramTest(GetParam().run.program) {}
};

TEST_P(FaultTest, IsFound) {
  const MetalFault& fault = GetParam();
  const test::MutatedSources sources(fault.file, fault.from, fault.to);
  own_cache();
  const test::Outcome outcome = run_line(line_for("metal:emulated", fault.run.axes));
  const std::string all = outcome.err + outcome.out;
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(std::regex_search(all, std::regex(expected(fault)))) << expected(fault) << "\n" << all;
  // If only the mathematics is wrong, the emulator has nothing to report.
  EXPECT_TRUE(fault.found_by != FoundBy::oracle || all.find("metal:emulated: ") == std::string::npos) << all;
}

/// A kernel without a fault, in one order of threads.
struct Order {
  std::string program, axes;
  uint32_t order;
};
void PrintTo(const Order& order, std::ostream* out) { *out << order.program << " in order " << order.order; }

class OrderTest : public test::MetalProgramTest, public testing::WithParamInterface<Order> {
 protected:
  OrderTest() : MetalProgramTest(GetParam().program) {}
};

TEST_P(OrderTest, RaisesNoAlarm) {
  const Order& order = GetParam();
  const test::Outcome outcome = run_line(line_for("metal:emulated:order=" + std::to_string(order.order), order.axes));
  EXPECT_EQ(outcome.status, 0) << outcome.err << outcome.out;
  EXPECT_NE((outcome.err + outcome.out).find(" ok, 0 wrong, 0 skipped"), std::string::npos) << outcome.out;
}

// Returns the first fault of each kind if `first_of_kind` is set, else all other faults.
std::vector<MetalFault> faults(bool first_of_kind) {
  std::vector<MetalFault> chosen;
  std::set<FoundBy> kinds;
  for (const MetalFault& fault : test::metal_faults()) {
    if (kinds.insert(fault.found_by).second == first_of_kind) chosen.push_back(fault);
  }
  return chosen;
}

// Returns the kernels and shapes of the faults, each in all orders from `first` to `end` - 1. If `one_of_file` is set,
// returns only one shape of each file.
std::vector<Order> in_orders(uint32_t first, uint32_t end, bool one_of_file) {
  std::set<std::pair<std::string, std::string>> cases;
  std::set<std::string> files;
  for (const MetalFault& fault : test::metal_faults()) {
    if (files.insert(fault.file).second || !one_of_file) cases.emplace(fault.run.program, fault.run.axes);
  }
  std::vector<Order> all;
  for (const auto& [program, axes] : cases) {
    for (uint32_t order = first; order < end; ++order) all.push_back({program, axes, order});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<MetalFault>& fault) { return fault.param.name; }
std::string number_of(const testing::TestParamInfo<Order>& order) {
  return order.param.program + "_order_" + std::to_string(order.param.order) + "_" + std::to_string(order.index);
}

// MetalRest: tests with the label `long`.
INSTANTIATE_TEST_SUITE_P(Metal, FaultTest, testing::ValuesIn(faults(true)), name_of);
INSTANTIATE_TEST_SUITE_P(MetalRest, FaultTest, testing::ValuesIn(faults(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Metal, OrderTest, testing::ValuesIn(in_orders(2, 3, true)), number_of);
INSTANTIATE_TEST_SUITE_P(MetalRest, OrderTest, testing::ValuesIn(in_orders(0, 6, false)), number_of);

}  // namespace
}  // namespace attn
