// Compiled kernels and tuning results as one read-only file, name.rjb: what a platform team lays into an image so that
// no job compiles, and what takes candidates to a machine that only measures them. A bundle is mapped, so that
// thousands of processes share its pages, and looked up by binary search. Built twice of the same contents it is the
// same bytes.
//
//     magic "rowjit-b"   schema u32   bytes of the compilers u32   kernels u64   records u64
//     compilers: JSON, what compiled the kernels
//     index of the kernels, then of the records: digest [32]   offset u64   bytes u64, in the order of the digests
//     SHA-256 of everything before it [32]
//     kernels, each as encode_entry writes it (cache/entry.h); records, as encode_record does (cache/tuning_db.h)
//
// Integers are little-endian. What stands before the kernels is verified when a bundle is opened; a kernel and a record
// have their own checksums and keys, compared each time they are read: opening costs the same for any size.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/declined.h"
#include "base/digest.h"
#include "base/files.h"
#include "cache/entry.h"
#include "cache/key.h"
#include "cache/tuning_db.h"

namespace rowjit {

struct BundleContents {
    std::vector<Entry> kernels;
    std::vector<TuningRecord> records;
};

// A bundle of these, in whatever order they come; of two under one key, the first. How long a kernel took to compile is
// left out, since that differs from build to build. A check: every kernel's key is one that CacheKey made.
std::string encode_bundle(BundleContents contents);

class Bundle {
  public:
    // Declines, with the reason, a file that is not there, that others may write to (base/files.h), or whose index is
    // not what encode_bundle wrote.
    static Offer<std::shared_ptr<const Bundle>> open(const std::string& path);

    const std::string& path() const { return path_; }
    const std::vector<CompiledBy>& compilers() const { return compilers_; }  // each once

    // The kernel or record of that very key, verified: its digest is the key's. A damaged one is logged, and as if it
    // were not there.
    std::optional<Artifact> kernel(const CacheKey& key) const;
    std::optional<TuningRecord> record(const TuningKey& key) const;

    // By place, as the command line asks; declines what is damaged, or of another key than the index says.
    std::size_t kernel_count() const { return kernels_.size() / kRowBytes; }
    std::size_t record_count() const { return records_.size() / kRowBytes; }
    Digest kernel_digest(std::size_t place) const;
    std::int64_t kernel_bytes(std::size_t place) const;
    Offer<Entry> kernel_at(std::size_t place) const;
    Offer<TuningRecord> record_at(std::size_t place) const;

  private:
    static constexpr std::size_t kRowBytes = sizeof(Digest) + 2 * sizeof(std::uint64_t);

    struct Row {
        Digest digest;
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };

    Bundle(std::string path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}
    std::optional<Declined> read_index();
    static Row row(std::string_view index, std::size_t place);
    static std::optional<std::size_t> find(std::string_view index, const Digest& digest);  // its place
    // Declines a row that reaches beyond the file, as one does that was cut short.
    Offer<std::string_view> piece(const Row& row) const;
    void warn(const Digest& digest, std::string_view reason) const;

    std::string path_;
    MappedFile file_;
    std::vector<CompiledBy> compilers_;
    std::string_view kernels_;  // their rows of the index
    std::string_view records_;
};

// In the order in which they are asked.
using Bundles = std::vector<std::shared_ptr<const Bundle>>;

// One that is declined costs a warning and is left out.
Bundles open_bundles(const std::vector<std::string>& paths);

}  // namespace rowjit
