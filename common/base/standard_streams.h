// The descriptors 0, 1 and 2 of a program, which a caller may have closed, or connected with a full disk.
#pragma once

#include <string_view>

namespace attn {

/// Opens /dev/null for reading in place of each of the descriptors 0, 1 and 2 that is closed. So no file that the
/// program opens gets one of these numbers, and a text for a closed stream is lost as on a full disk. Call this
/// function before the program opens a file.
void keep_standard_streams();

/// Writes a text to stderr. A text that cannot be written is lost: a program does not end because nobody reads its
/// progress.
void to_stderr(std::string_view text);

}  // namespace attn
