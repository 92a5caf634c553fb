// Compares the machine code of recorded kernels whose text has changed since the recording.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "findings/kb/verify.h"

namespace attn::kb {

/// A recorded kernel, and the device for which it was compiled.
struct RecordedKernel {
  std::string key, source_sha256, code_sha256;
  Json device;  // the description of the device in a finding's environment
};

/// Returns the kernels of the record files, plain or gzip, each once per device. Throws BadInput for a file that cannot
/// be opened, for a line that is no JSON, and for a device that no finding describes.
std::vector<RecordedKernel> recorded_kernels(const std::vector<std::string>& files);

struct CodeComparison {
  SameCode same;                    // kernels whose texts give the same code on every device
  std::vector<std::string> others;  // a line for each kernel with other code or no comparison: key, device, reason
  int64_t current = 0;              // kernels with the recorded text, or already known to have the same code
  int64_t unknown = 0;              // kernels whose key lacks a part of the source: replaced headers, run-time values
};

/// Compiles today's text (in the tree source_root()) of each kernel whose text has changed. If the result differs from
/// the recorded machine code, also compiles the old text (in the tree `old_root`), and compares the two results. The
/// old text is the recorded text, or the later text to which `known` maps it.
CodeComparison compare_code(const std::vector<RecordedKernel>& kernels, const std::string& old_root,
                            const SameCode& known);

/// Returns the text of a same_code.txt with `pairs` added. A pair replaces an older pair with the same recorded hash.
std::string merged(const std::string& text, const SameCode& pairs);

}  // namespace attn::kb
