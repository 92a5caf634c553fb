#include "common/base/run_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "common/base/error.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"

namespace attn {

int run_program(const std::string& name, const std::function<int()>& body) {
  keep_standard_streams();
  const auto complain = [&](const std::string& message, int status) {
    to_stderr(fmt::format("{}: {}\n", name, printable(message)));
    return status;
  };
  int status = 0;
  try {
    status = body();
  } catch (const BadInput& error) {
    status = complain(error.what(), 2);
  } catch (const DeviceMissing& error) {
    status = complain(error.what(), 3);
  } catch (const std::bad_alloc&) {
    status = complain("the host has no memory left", 1);
  } catch (const std::exception& error) {
    status = complain(error.what(), 1);
  }
  to_stdout("");  // writes what printf() has kept
  return stdout_lost() ? complain("stdout cannot be written", std::max(status, 1)) : status;
}

}  // namespace attn
