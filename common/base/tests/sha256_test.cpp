// SHA-256 against published and independently computed digests.
#include "common/base/sha256.h"

#include <gtest/gtest.h>

#include <utility>

namespace attn {
namespace {

TEST(Sha256Test, PublishedVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The padding takes one more block from 56 bytes on, and again from 120 bytes on. Bytes above 127 catch sign extension.
// Another implementation computed the digests.
TEST(Sha256Test, LengthsAroundTheBlockBoundaries) {
  for (const auto& [length, digest] : {
           std::pair{55, "576a1bf8d4478657e6dc4af9398544765c2a92cde28478b019235cfed315fc09"},
           {56, "9b20501dfd1d99161c257950f3444f3e49230c351c5c8e0943ef369f85f5205d"},
           {63, "30b345906b493f06f69444b6521113511c242f30e29840462950035043682f1e"},
           {64, "d8bc63b4fc1156e5e7d95a418b9bf54cd3174bedbc2db40f74895349b229b3c0"},
           {65, "1ee23b0fbcaecc1aff4a9e8f1645f35ab2c8e13609cd73b68df8b5e3f63ce073"},
           {119, "7a6589821178918ca8d9edaba5abfc1e9b2669564f4469b66885379c1530b2c8"},
           {120, "655250427d56b1b0eeb8497d21428704273458a01772d6881b65c0abac0f8a98"},
       }) {
    std::string bytes;
    for (int i = 0; i < length; ++i) bytes += static_cast<char>(i * 7);
    EXPECT_EQ(sha256(bytes), digest) << length;
  }
}

}  // namespace
}  // namespace attn
