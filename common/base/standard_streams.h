// The descriptors 0, 1 and 2 of a program, which a caller may have closed, or connected with a full disk or with a pipe
// that nobody reads.
#pragma once

#include <string_view>

namespace attn {

/// Opens /dev/null in place of stdin, and /dev/full in place of stdout and stderr, if they are closed. So no file that
/// the program opens gets descriptor 0, 1 or 2. A write to a stream that was closed, or to /dev/stdout, fails as on a
/// full disk. Call this function before the program opens a file.
void keep_standard_streams();

/// Writes a text to stderr. A text that cannot be written is lost: a program does not end because nobody reads its
/// progress.
void to_stderr(std::string_view text);

/// Writes a text to stdout, after the texts that printf() and its like have kept for stdout.
void to_stdout(std::string_view text);

/// Whether a text for stdout was lost.
bool stdout_lost();

/// Sets whether to_stderr() and to_stdout() wait until somebody reads a full pipe. If they do not wait, they give up on
/// a full pipe after a fifth of a second, and the text is lost. A signal handler may call this function.
void wait_for_readers(bool wait) noexcept;

}  // namespace attn
