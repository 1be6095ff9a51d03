// Bundles: what is found in them, that one is the same bytes each time, and that no damage goes unnoticed.
#include "cache/bundle.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cache/kernel_cache.h"
#include "tests/cache/fixture.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

KeyFields fields_of(const std::string& text) {
    KeyFields fields = example_fields();
    fields.source.text = text;
    return fields;
}

Entry kernel_of(const std::string& text) {
    const CacheKey key(fields_of(text));
    Artifact artifact = example_artifact();
    artifact.binary += text;
    return {key.digest(), key.text(), artifact};
}

TuningRecord record_of(const std::string& operation, const std::string& choice = "elementwise keep=reload vector=8") {
    return {.key = {operation, "sm_90a NVIDIA H200 x132 ", "any rows"}, .choice = choice, .samples_ms = {1, 2}};
}

BundleContents example_contents() {
    return {{kernel_of("a"), kernel_of("b"), kernel_of("c")}, {record_of("one"), record_of("two")}};
}

// Where `bytes` are a file, as open wants it.
std::string written(const TemporaryDirectory& directory, const std::string& bytes) {
    const std::string path = directory.path() + "/kernels.rjb";
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
}

std::shared_ptr<const Bundle> opened(const std::string& path) {
    const Offer<std::shared_ptr<const Bundle>> bundle = Bundle::open(path);
    REQUIRE_MESSAGE(bundle, bundle.reason());
    return *bundle;
}

}  // namespace

TEST_CASE("a bundle has each kernel and record that was put into it, and no other") {
    const TemporaryDirectory directory;
    const auto bundle = opened(written(directory, encode_bundle(example_contents())));
    CHECK(bundle->kernel_count() == 3);
    CHECK(bundle->record_count() == 2);
    for (const std::string text : {"a", "b", "c"}) {
        const std::optional<Artifact> found = bundle->kernel(CacheKey(fields_of(text)));
        REQUIRE(found);
        CHECK(found->binary == kernel_of(text).artifact.binary);
    }
    CHECK_FALSE(bundle->kernel(CacheKey(fields_of("d"))));
    CHECK(*bundle->record(record_of("one").key) == record_of("one"));
    CHECK_FALSE(bundle->record(record_of("three").key));
}

TEST_CASE("a bundle built again in another order, of kernels compiled again, is the same bytes") {
    BundleContents again = example_contents();
    std::reverse(again.kernels.begin(), again.kernels.end());
    std::reverse(again.records.begin(), again.records.end());
    again.kernels.push_back(again.kernels.front());
    for (Entry& kernel : again.kernels) kernel.artifact.compile_ms += 17;
    CHECK(encode_bundle(again) == encode_bundle(example_contents()));
}

TEST_CASE("an empty bundle is one") {
    const TemporaryDirectory directory;
    const auto bundle = opened(written(directory, encode_bundle({})));
    CHECK(bundle->kernel_count() == 0);
    CHECK_FALSE(bundle->kernel(CacheKey(example_fields())));
}

TEST_CASE("a bundle cut short at any length, or with any bit turned, gives nothing but what was put into it") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    const BundleContents contents = {{kernel_of("a")}, {record_of("one")}};
    const std::string whole = encode_bundle(contents);
    const CacheKey key(fields_of("a"));
    const Artifact right = opened(written(directory, whole))->kernel(key).value();
    int refused = 0;
    const auto try_it = [&](const std::string& bytes) {
        const Offer<std::shared_ptr<const Bundle>> bundle = Bundle::open(written(directory, bytes));
        if (!bundle) return void(++refused);
        const std::optional<Artifact> kernel = (*bundle)->kernel(key);
        const std::optional<TuningRecord> record = (*bundle)->record(record_of("one").key);
        CHECK((!kernel || *kernel == right));
        CHECK((!record || *record == record_of("one")));
        // What is left of one is never all of it.
        CHECK_FALSE((kernel && record));
    };
    for (std::size_t length = 0; length < whole.size(); ++length) try_it(whole.substr(0, length));
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
        std::string bytes = whole;
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
        try_it(bytes);
    }
    CHECK(refused > 0);
}

TEST_CASE("what is no bundle is declined with the reason") {
    const TemporaryDirectory directory;
    CHECK(mentions(Bundle::open(directory.path() + "/none.rjb").reason(), "No such file"));
    CHECK(mentions(Bundle::open(directory.path()).reason(), "not a regular file"));
    CHECK(mentions(Bundle::open(written(directory, "some text that is long enough for a header")).reason(),
                   "not a bundle"));
    const std::string path = written(directory, encode_bundle({}));
    std::filesystem::permissions(path, std::filesystem::perms::others_write, std::filesystem::perm_options::add);
    CHECK(mentions(Bundle::open(path).reason(), "others may write"));
    std::filesystem::create_symlink(path, directory.path() + "/link.rjb");
    CHECK(mentions(Bundle::open(directory.path() + "/link.rjb").reason(), "symbolic link"));
}

TEST_CASE("a bundle that cannot be used costs one warning, and the others serve") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    const std::string path = written(directory, encode_bundle(example_contents()));
    const std::string none = directory.path() + "/none.rjb";
    CHECK(open_bundles({none, path}).size() == 1);
    CHECK(open_bundles({none, path}).size() == 1);
    CHECK(log.messages().size() == 1);
}

TEST_CASE("a cache finds a bundle's kernel whichever compiler made it, before it looks on disk") {
    const TemporaryDirectory directory;
    const Bundles bundles = open_bundles({written(directory, encode_bundle(example_contents()))});
    KernelCache cache(std::make_shared<KernelStore>(directory.path() + "/cache"), bundles);
    KeyFields fields = fields_of("b");
    fields.toolchain_version = "of no compiler at all";
    const std::optional<BundledKernel> found = cache.find_bundled(fields);
    REQUIRE(found);
    CHECK(found->key.text() == kernel_of("b").key_text);
    CHECK(cache.find_bundled(fields)->artifact == found->artifact);
    CHECK(cache.statistics().bundle_hits == 1);
    CHECK(cache.statistics().memory_hits == 1);

    fields.architecture = "sm_80";
    CHECK_FALSE(cache.find_bundled(fields));
    CHECK_FALSE(cache.find_bundled(fields_of("z")));
}

TEST_CASE("a bundle's kernel that a driver refused is not offered again") {
    const TemporaryDirectory directory;
    const CapturedLog log;
    KernelCache cache(nullptr, open_bundles({written(directory, encode_bundle(example_contents()))}));
    const std::optional<BundledKernel> found = cache.find_bundled(fields_of("a"));
    REQUIRE(found);
    cache.reject(found->key, "no binary for this GPU");
    CHECK_FALSE(cache.find_bundled(fields_of("a")));
    CHECK(cache.find_bundled(fields_of("b")));
}

TEST_CASE("what a key says of its compiler is read back") {
    KeyFields fields = example_fields();
    fields.options = {"--a=b:c", "", "two words\n"};
    const std::optional<CompiledBy> compiler = compiler_of(CacheKey(fields).text());
    REQUIRE(compiler);
    CHECK(compiler->options == fields.options);
    CHECK(compiler->toolchain_version == fields.toolchain_version);
    CHECK(CacheKey(with_compiler(fields, *compiler)).digest() == CacheKey(fields).digest());
    CHECK_FALSE(compiler_of("architecture 6:sm_90a\n"));
    CHECK_FALSE(compiler_of("architecture 600:sm_90a\n"));
    CHECK_FALSE(compiler_of("nonsense"));
}
