// One kernel as a file: everything needed to trust it stands in the file itself. This is the format alone; where files
// lie and how they get there is cache/store.
//
//     magic "rowjit-k"   schema u32   reserved u32   key digest [32]
//     sizes of key text, metadata and binary, u64 each
//     key text   metadata (JSON)   binary
//     sha256_of_halves (base/digest.h) of everything before it [32]
//
// Integers are little-endian.
#pragma once

#include <string>
#include <string_view>

#include "base/declined.h"
#include "base/digest.h"
#include "compiler/toolchain/artifact.h"

namespace rowjit {

struct Entry {
    Digest digest;
    std::string key_text;
    Artifact artifact;
};

std::string encode_entry(const Entry& entry);

// Declines, saying what is wrong, every byte sequence that encode_entry did not write: the checksum is compared before
// anything else is looked at.
Offer<Entry> decode_entry(std::string_view bytes);

}  // namespace rowjit
