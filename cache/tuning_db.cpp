#include "cache/tuning_db.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace rowjit {

namespace {

constexpr int kSchema = 1;
constexpr const char* kFolder = "tune";
constexpr std::string_view kSuffix = ".json";
constexpr std::int64_t kMaxRecordBytes = std::int64_t{16} << 20;
constexpr std::size_t kFolderDigits = 16;  // 64 bits of the fingerprint's digest: a site has few kinds of device

std::string folder_of(const TuningKey& key) {
    return fmt::format("{}/{}", kFolder, sha256(key.device).hex().substr(0, kFolderDigits));
}

std::string file_name(const TuningKey& key) { return digest_of(key).hex() + std::string(kSuffix); }

bool is_record_name(std::string_view name) {
    return name.ends_with(kSuffix) && parse_digest(name.substr(0, name.size() - kSuffix.size()));
}

// The checksum is over the record's compact form, so that the file itself may be indented for people.
std::string checksum_of(const nlohmann::ordered_json& record) {
    return sha256(record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).hex();
}

// Records of versions that kept none have no such field.
constexpr const char* kRejected = "rejected";

template <class T>
T required(IoResult<T> result) {
    if (!result) fail(ErrorCode::kIo, "{}", result.failure().message());
    return std::move(*result);
}

// Calls `each` with every folder of records and the name of every record in it.
template <class Each>
void for_each_record(const CacheDirectory& directory, Each each) {
    IoResult<Directory> top = directory.open(kFolder);
    if (!top && top.failure().absent()) return;
    for (const FileState& device : required(required(std::move(top)).list())) {
        const IoResult<Directory> folder = directory.open(fmt::format("{}/{}", kFolder, device.name));
        if (!folder) continue;  // a stray file among the folders
        for (const FileState& file : required(folder->list()))
            if (file.plain && is_record_name(file.name)) each(*folder, file.name);
    }
}

}  // namespace

Digest digest_of(const TuningKey& key) {
    return FieldHasher()
        .add("schema", kSchema)
        .add("operation", key.operation)
        .add("device", key.device)
        .add("shape", key.shape)
        .finish();
}

std::string encode_record(const TuningRecord& record) {
    nlohmann::ordered_json body = {
        {"operation", record.key.operation}, {"device", record.key.device},   {"shape", record.key.shape},
        {"choice", record.choice},           {"median_ms", record.median_ms}, {"spread", record.spread},
        {"baseline_ms", record.baseline_ms}, {"toolchain", record.toolchain}, {"samples_ms", record.samples_ms}};
    body[kRejected] = nlohmann::ordered_json::array();
    for (const RejectedChoice& row : record.rejected)
        body[kRejected].push_back({{"choice", row.choice}, {"why", row.why}});
    const nlohmann::ordered_json file = {{"schema", kSchema}, {"record", body}, {"sha256", checksum_of(body)}};
    return file.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Offer<TuningRecord> decode_record(std::string_view bytes) try {
    const nlohmann::ordered_json file = nlohmann::ordered_json::parse(bytes);
    const nlohmann::ordered_json& body = file.at("record");
    if (file.at("schema") != kSchema) return Declined{"it has another schema"};
    if (file.at("sha256") != checksum_of(body)) return Declined{"its checksum does not match"};
    TuningRecord record;
    body.at("operation").get_to(record.key.operation);
    body.at("device").get_to(record.key.device);
    body.at("shape").get_to(record.key.shape);
    body.at("choice").get_to(record.choice);
    body.at("median_ms").get_to(record.median_ms);
    body.at("spread").get_to(record.spread);
    body.at("baseline_ms").get_to(record.baseline_ms);
    body.at("toolchain").get_to(record.toolchain);
    body.at("samples_ms").get_to(record.samples_ms);
    for (const auto& row : body.value(kRejected, nlohmann::ordered_json::array()))
        record.rejected.push_back({row.at("choice"), row.at("why")});
    return record;
} catch (const nlohmann::json::exception& error) {
    return Declined{fmt::format("it does not parse ({})", error.what())};
}

std::optional<TuningRecord> TuningDb::get(const TuningKey& key) const {
    if (!directory_.enabled()) return std::nullopt;
    const std::string name = file_name(key);
    const std::optional<FileContents> contents = directory_.fetch(folder_of(key), name, kMaxRecordBytes);
    if (!contents) return std::nullopt;
    const Offer<TuningRecord> record = decode_record(contents->bytes);
    if (!record || record->key != key) {
        directory_.quarantine(folder_of(key), name,
                              record ? "it was stored under another key" : std::string_view(record.reason()));
        return std::nullopt;
    }
    return *record;
}

bool TuningDb::put(const TuningRecord& record) const {
    if (!directory_.enabled()) return false;
    const IoResult<bool> published =
        directory_.publish(folder_of(record.key), file_name(record.key), encode_record(record), Publish::kReplace);
    if (!published) directory_.warn(published.failure());
    return static_cast<bool>(published);
}

std::vector<TuningRecord> TuningDb::list() const {
    std::vector<TuningRecord> records;
    for_each_record(directory_, [&](const Directory& folder, const std::string& name) {
        const IoResult<FileContents> contents = folder.read(name, kMaxRecordBytes);
        if (!contents) return;
        if (Offer<TuningRecord> record = decode_record(contents->bytes)) records.push_back(std::move(*record));
    });
    return records;
}

std::int64_t TuningDb::clear() const {
    std::int64_t removed = 0;
    for_each_record(directory_, [&](const Directory& folder, const std::string& name) {
        required(folder.remove(name));
        ++removed;
    });
    return removed;
}

}  // namespace rowjit
