#include "cache/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"
#include "cache/bytes.h"

namespace rowjit {

namespace {

constexpr std::string_view kMagic = "rowjit-b";
constexpr std::uint32_t kSchema = 1;
constexpr std::size_t kHeaderBytes = kMagic.size() + 2 * sizeof(std::uint32_t) + 2 * sizeof(std::uint64_t);

// The bindings name every field: one that CompiledBy gains does not compile until it is stored too.

nlohmann::json to_json(const CompiledBy& compiler) {
    const auto& [options, architecture, cpu_features, toolchain, toolchain_version] = compiler;
    return {options, architecture, cpu_features, toolchain, toolchain_version};
}

CompiledBy compiler_from(const nlohmann::json& json) {
    CompiledBy compiler;
    auto& [options, architecture, cpu_features, toolchain, toolchain_version] = compiler;
    json.at(0).get_to(options);
    json.at(1).get_to(architecture);
    json.at(2).get_to(cpu_features);
    json.at(3).get_to(toolchain);
    json.at(4).get_to(toolchain_version);
    return compiler;
}

std::string compilers_text(const std::vector<Entry>& kernels) {
    std::vector<nlohmann::json> compilers;
    for (const Entry& kernel : kernels) {
        const std::optional<CompiledBy> compiler = compiler_of(kernel.key_text);
        RJ_CHECK(compiler, "a bundle's kernel {} has a key of another form", kernel.digest.hex());
        compilers.push_back(to_json(*compiler));
    }
    std::sort(compilers.begin(), compilers.end());
    compilers.erase(std::unique(compilers.begin(), compilers.end()), compilers.end());
    return nlohmann::json(compilers).dump();
}

// In the order of their digests, each digest once.
template <class T, class DigestOf>
void put_in_order(std::vector<T>* pieces, DigestOf digest_of) {
    std::stable_sort(pieces->begin(), pieces->end(),
                     [&](const T& a, const T& b) { return digest_of(a) < digest_of(b); });
    const auto same = [&](const T& a, const T& b) { return digest_of(a) == digest_of(b); };
    pieces->erase(std::unique(pieces->begin(), pieces->end(), same), pieces->end());
}

}  // namespace

std::string encode_bundle(BundleContents contents) {
    auto& [kernels, records] = contents;
    put_in_order(&kernels, [](const Entry& kernel) { return kernel.digest; });
    put_in_order(&records, [](const TuningRecord& record) { return digest_of(record.key); });
    const std::string compilers = compilers_text(kernels);

    std::string pieces;
    std::string index;
    const std::uint64_t first = kHeaderBytes + compilers.size() +
                                (kernels.size() + records.size()) * (kDigestBytes + 2 * sizeof(std::uint64_t)) +
                                kDigestBytes;
    const auto add = [&](const Digest& digest, const std::string& bytes) {
        index += text_of(digest);
        append_little_endian(index, static_cast<std::uint64_t>(first + pieces.size()));
        append_little_endian(index, static_cast<std::uint64_t>(bytes.size()));
        pieces += bytes;
    };
    for (Entry& kernel : kernels) {
        kernel.artifact.compile_ms = 0;
        add(kernel.digest, encode_entry(kernel));
    }
    for (const TuningRecord& record : records) add(digest_of(record.key), encode_record(record));

    std::string bytes(kMagic);
    append_little_endian(bytes, kSchema);
    append_little_endian(bytes, static_cast<std::uint32_t>(compilers.size()));
    append_little_endian(bytes, static_cast<std::uint64_t>(kernels.size()));
    append_little_endian(bytes, static_cast<std::uint64_t>(records.size()));
    bytes += compilers;
    bytes += index;
    bytes += text_of(sha256(bytes));
    bytes += pieces;
    return bytes;
}

Offer<std::shared_ptr<const Bundle>> Bundle::open(const std::string& path) {
    IoResult<MappedFile> file = MappedFile::open(path);
    if (!file) return Declined{file.failure().message()};
    const std::shared_ptr<Bundle> bundle(new Bundle(path, std::move(*file)));
    if (std::optional<Declined> declined = bundle->read_index()) return std::move(*declined);
    return std::shared_ptr<const Bundle>(bundle);
}

std::optional<Declined> Bundle::read_index() try {
    const std::string_view bytes = file_.bytes();
    Reader reader{bytes};
    if (bytes.size() < kHeaderBytes || reader.take(kMagic.size()) != kMagic)
        return Declined{path_ + " is not a bundle; `rowjit bundle export` writes one"};
    const auto schema = reader.integer<std::uint32_t>();
    if (schema != kSchema)
        return Declined{
            fmt::format("{} has schema {}, and this rowjit reads {}; export it again", path_, schema, kSchema)};
    const std::uint64_t compilers_bytes = reader.integer<std::uint32_t>();
    const auto kernels = reader.integer<std::uint64_t>();
    const auto records = reader.integer<std::uint64_t>();
    // Each piece of the index takes a row of it and lies in the file: larger numbers are of no bundle, and could
    // overflow what follows.
    const std::uint64_t most = bytes.size() / kRowBytes;
    const bool fits = kernels <= most && records <= most &&
                      compilers_bytes + (kernels + records) * kRowBytes + kDigestBytes <= reader.rest.size();
    if (!fits) return Declined{path_ + " is cut short; export it again"};
    const std::string_view compilers = reader.take(compilers_bytes);
    kernels_ = reader.take(kernels * kRowBytes);
    records_ = reader.take(records * kRowBytes);
    const std::string_view covered = bytes.substr(0, bytes.size() - reader.rest.size());
    if (text_of(sha256(covered)) != reader.take(kDigestBytes))
        return Declined{path_ + " is damaged: the checksum of its index does not match; export it again"};
    for (const nlohmann::json& compiler : nlohmann::json::parse(compilers))
        compilers_.push_back(compiler_from(compiler));
    return std::nullopt;
} catch (const nlohmann::json::exception& error) {
    return Declined{fmt::format("{} does not parse ({}); export it again", path_, error.what())};
}

Bundle::Row Bundle::row(std::string_view index, std::size_t place) {
    Reader reader{index.substr(place * kRowBytes, kRowBytes)};
    Row row;
    const std::string_view digest = reader.take(kDigestBytes);
    std::memcpy(row.digest.bytes.data(), digest.data(), digest.size());
    row.offset = reader.integer<std::uint64_t>();
    row.bytes = reader.integer<std::uint64_t>();
    return row;
}

std::optional<std::size_t> Bundle::find(std::string_view index, const Digest& digest) {
    std::size_t begin = 0;
    std::size_t end = index.size() / kRowBytes;
    while (begin < end) {
        const std::size_t middle = begin + (end - begin) / 2;
        const Digest found = row(index, middle).digest;
        if (found == digest) return middle;
        (found < digest ? begin : end) = found < digest ? middle + 1 : middle;
    }
    return std::nullopt;
}

Offer<std::string_view> Bundle::piece(const Row& row) const {
    const std::string_view bytes = file_.bytes();
    if (row.offset > bytes.size() || row.bytes > bytes.size() - row.offset)
        return Declined{"it lies beyond the file's end"};
    return bytes.substr(row.offset, row.bytes);
}

std::optional<Artifact> Bundle::kernel(const CacheKey& key) const {
    const std::optional<std::size_t> place = find(kernels_, key.digest());
    if (!place) return std::nullopt;
    Offer<Entry> entry = kernel_at(*place);
    if (entry) return std::move((*entry).artifact);
    warn(key.digest(), entry.reason());
    return std::nullopt;
}

std::optional<TuningRecord> Bundle::record(const TuningKey& key) const {
    const Digest digest = digest_of(key);
    const std::optional<std::size_t> place = find(records_, digest);
    if (!place) return std::nullopt;
    Offer<TuningRecord> record = record_at(*place);
    if (record) return std::move(*record);
    warn(digest, record.reason());
    return std::nullopt;
}

Digest Bundle::kernel_digest(std::size_t place) const { return row(kernels_, place).digest; }

std::int64_t Bundle::kernel_bytes(std::size_t place) const {
    return static_cast<std::int64_t>(row(kernels_, place).bytes);
}

Offer<Entry> Bundle::kernel_at(std::size_t place) const {
    const Row found = row(kernels_, place);
    const Offer<std::string_view> bytes = piece(found);
    if (!bytes) return Declined{bytes.reason()};
    Offer<Entry> entry = decode_entry(*bytes);
    if (entry && entry->digest != found.digest) return Declined{"its digest is not the index's"};
    return entry;
}

Offer<TuningRecord> Bundle::record_at(std::size_t place) const {
    const Row found = row(records_, place);
    const Offer<std::string_view> bytes = piece(found);
    if (!bytes) return Declined{bytes.reason()};
    Offer<TuningRecord> record = decode_record(*bytes);
    if (record && digest_of(record->key) != found.digest) return Declined{"its key is not the index's"};
    return record;
}

void Bundle::warn(const Digest& digest, std::string_view reason) const {
    log_once(fmt::format("bundle {} {}", path_, digest.hex()), LogLevel::kWarning,
             "{}: {} is left out: {}; `rowjit bundle verify` reads all of it", path_, digest.hex(), reason);
}

Bundles open_bundles(const std::vector<std::string>& paths) {
    Bundles bundles;
    for (const std::string& path : paths) {
        if (Offer<std::shared_ptr<const Bundle>> bundle = Bundle::open(path)) {
            bundles.push_back(std::move(*bundle));
        } else {
            log_once("bundle " + path, LogLevel::kWarning, "bundle left out: {}", bundle.reason());
        }
    }
    return bundles;
}

}  // namespace rowjit
