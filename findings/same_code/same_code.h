// Recorded kernels whose text has changed since: is their machine code what it was?
#pragma once

#include <map>
#include <string>
#include <vector>

#include "findings/kb/verify.h"

namespace attn::kb {

/// A kernel of the records, as a device compiled it.
struct RecordedKernel {
  std::string key, source_sha256, code_sha256;
  Json device;  // as a finding's environment describes it
};

/// Each kernel of the record files once a device. Throws BadInput for a file that cannot be read.
std::vector<RecordedKernel> recorded_kernels(const std::vector<std::string>& files);

struct CodeComparison {
  SameCode same;                    // recorded hash, and that of today's text, of the same code on every device
  std::vector<std::string> others;  // in one line each: a kernel, its device, and what there is instead
  int64_t current = 0;              // kernels whose text is as it was, or already known to be of the same code
  int64_t unknown = 0;              // kernels that a key does not tell whole: replaced headers, values at run time
};

/// Compiles the kernels that are not current from the text that the tree `old_root` has, and from today's
/// (source_root()). The old text is the recorded one, or what `known` has in its place.
CodeComparison compare_code(const std::vector<RecordedKernel>& kernels, const std::string& old_root,
                            const SameCode& known);

/// The text of a same_code.txt with these pairs too, in the place of older ones of the same recorded hash.
std::string merged(const std::string& text, const SameCode& pairs);

}  // namespace attn::kb
