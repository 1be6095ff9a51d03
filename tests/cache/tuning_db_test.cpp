#include "cache/tuning_db.h"

#include <doctest/doctest.h>

#include "tests/cache/fixture.h"

using namespace rowjit;

namespace {

TuningRecord example_record() {
    TuningRecord record;
    record.key = {"rms_norm fwd, kernel 1 of 1", "sm_90a, 132 multiprocessors", "rows 4096..8191"};
    record.choice = "threads_per_row 256, vector 8";
    record.samples_ms = {0.1, 0.25, 1.0 / 3.0};
    record.median_ms = 0.25;
    record.spread = 0.04;
    record.baseline_ms = 0.3;
    record.toolchain = "nvrtc 13.0";
    record.rejected = {{"threads_per_row 1024, vector 8", "signal 11 (Segmentation fault)"}};
    return record;
}

// The one file below `root`.
std::string only_file(const std::string& root) {
    std::string found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
        if (entry.is_regular_file()) found = entry.path();
    return found;
}

}  // namespace

TEST_CASE("a record comes back digit for digit under its key") {
    const TemporaryDirectory directory;
    const TuningDb db(directory.path());
    CHECK_FALSE(db.get(example_record().key));
    CHECK(db.put(example_record()));
    REQUIRE(db.get(example_record().key));
    CHECK(*db.get(example_record().key) == example_record());
}

TEST_CASE("a record is found under no other operation, device or shape") {
    const TemporaryDirectory directory;
    const TuningDb db(directory.path());
    db.put(example_record());
    for (std::string TuningKey::* field : {&TuningKey::operation, &TuningKey::device, &TuningKey::shape}) {
        TuningKey other = example_record().key;
        other.*field += "!";
        CHECK_FALSE(db.get(other));
    }
}

TEST_CASE("tuning again replaces the record") {
    const TemporaryDirectory directory;
    const TuningDb db(directory.path());
    db.put(example_record());
    TuningRecord better = example_record();
    better.choice = "threads_per_row 512, vector 8";
    db.put(better);
    CHECK(db.get(better.key)->choice == better.choice);
    CHECK(db.list().size() == 1);
}

TEST_CASE("a record with any bit flipped, or cut short, is never read as another") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    const TuningDb db(directory.path());
    db.put(example_record());
    const std::string path = only_file(directory.path());
    const std::string whole = read_file(path);
    int wrong = 0, missed = 0;
    const auto damage = [&](const std::string& bytes) {
        write_file(path, bytes);
        const auto found = db.get(example_record().key);
        wrong += found && *found != example_record() ? 1 : 0;
        missed += found ? 0 : 1;
        std::filesystem::remove(path);
    };
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
        damage(whole.substr(0, byte));
        std::string flipped = whole;
        flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << byte % 8));
        damage(flipped);
    }
    CHECK(wrong == 0);
    CHECK(missed > 800);
}

TEST_CASE("clear removes the records and nothing else") {
    const TemporaryDirectory directory;
    const TuningDb db(directory.path());
    CHECK(db.clear() == 0);
    db.put(example_record());
    write_file(directory.path() + "/v1/tune/notes", "mine");
    CHECK(db.clear() == 1);
    CHECK_FALSE(db.get(example_record().key));
    CHECK(exists(directory.path() + "/v1/tune/notes"));
}

TEST_CASE("a full disk costs one warning") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    const ScopedIoHook hook([](IoCall& call) { return std::string_view(call.operation) == "write" ? ENOSPC : 0; });
    const TuningDb db(directory.path());
    CHECK_FALSE(db.put(example_record()));
    CHECK_FALSE(db.put(example_record()));
    CHECK(log.messages().size() == 1);
    CHECK(log.count("No space left on device") == 1);
}
