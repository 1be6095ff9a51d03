// Measured choices: for one operation on one device, which schedule won and by how much. One JSON file each, written
// whole, so that a tuning that is interrupted keeps what it had measured. What a choice means is the tuner's affair;
// here it is text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/declined.h"
#include "base/digest.h"
#include "cache/directory.h"

namespace rowjit {

// Every field is part of the file's place, so a record is found only under all of them again.
struct TuningKey {
    std::string operation;  // the graph's text or digest, with the kernel's place in its plan
    std::string device;     // fingerprint: architecture, multiprocessors, memory, clocks; never an ordinal or a host
    std::string shape;      // bucket of the run-time extents

    bool operator==(const TuningKey&) const = default;
};

// A choice that is not to be tried again: a compiler refused it or died of it, or its results were wrong.
struct RejectedChoice {
    std::string choice;
    std::string why;

    bool operator==(const RejectedChoice&) const = default;
};

struct TuningRecord {
    TuningKey key;
    std::string choice;              // the winning schedule's text form; "" while the tuning has not come to one
    std::vector<double> samples_ms;  // as measured, in order
    double median_ms = 0;
    double spread = 0;       // of the samples, relative to the median
    double baseline_ms = 0;  // what the static choice took, measured alongside
    std::string toolchain;
    std::vector<RejectedChoice> rejected;  // under this toolchain

    bool operator==(const TuningRecord&) const = default;
};

// What a record's file is named by.
Digest digest_of(const TuningKey& key);

// A record as JSON with its checksum, indented for people.
std::string encode_record(const TuningRecord& record);

// Declines, saying what is wrong, what encode_record did not write.
Offer<TuningRecord> decode_record(std::string_view bytes);

class TuningDb {
  public:
    explicit TuningDb(std::string root) : directory_(std::move(root)) {}

    // A damaged file is set aside, logged and a miss. Neither get nor put throws.
    std::optional<TuningRecord> get(const TuningKey& key) const;

    // Replaces an earlier record of the key. False when the disk could not be used (one warning).
    bool put(const TuningRecord& record) const;

    // Every readable record. Throws Error(kIo) when the directory cannot be read.
    std::vector<TuningRecord> list() const;

    // Removes every record and nothing else; how many. Throws Error(kIo).
    std::int64_t clear() const;

  private:
    CacheDirectory directory_;
};

}  // namespace rowjit
