#include "common/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace attn {

void keep_standard_streams() {
  // open() returns the lowest free number, so this loop ends with the first number that is not 0, 1 or 2.
  int opened = 0;
  while (opened >= 0 && opened <= STDERR_FILENO) opened = open("/dev/null", O_RDONLY);
  if (opened >= 0) close(opened);
}

void to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace attn
