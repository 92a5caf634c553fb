// The descriptors 0, 1 and 2 of a program. A caller may have closed a descriptor, or connected the descriptor with a
// file on a full disk or with a pipe that nobody reads.
#pragma once

#include <string_view>

namespace attn {

/// Opens /dev/null in place of stdin, and /dev/full in place of stdout and stderr, if they are closed. So no file that
/// the program opens gets descriptor 0, 1 or 2. A write to stdout, /dev/stdout or stderr then fails as on a full disk
/// if the stream was closed. Call this function before the program opens a file.
void keep_standard_streams();

/// Writes a text to stderr. A text that cannot be written is lost without an error, so a program goes on if nobody
/// reads its progress.
void to_stderr(std::string_view text);

/// Flushes the buffer of stdout, which printf() fills. Then writes a text to stdout.
void to_stdout(std::string_view text);

/// Whether a text for stdout was lost.
bool stdout_lost();

/// With `wait`, to_stderr() and to_stdout() wait as long as a pipe is full. Without `wait`, they wait for a full pipe
/// at most a fifth of a second; then the rest of the text is lost, and later texts for this stream are lost at once. A
/// signal handler may call this function.
void wait_for_readers(bool wait) noexcept;

}  // namespace attn
