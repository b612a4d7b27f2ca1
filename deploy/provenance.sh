#!/usr/bin/env bash
# provenance.sh DIRECTORY PROFILE ARCHITECTURES: prints the signed provenance of a release on one line. It is a DSSE envelope of an in-toto
# statement (https://slsa.dev/provenance/v1) about each file that DIRECTORY/SHA256SUMS lists. deploy/release.sh calls it;
# docs/releases.md says what the fields mean and how the line is verified.
#
#   BUILDER_ID=URI   names the machine that builds, and who answers for it
#   SOURCE_URL=URI   names the repository
#
# SIGNING_KEY, SIGNING_PASSPHRASE, PROGRAM, FEATURES and SOURCE_DATE_EPOCH are those of deploy/release.sh.
set -euo pipefail
export LC_ALL=C
sums=$(realpath "$1/SHA256SUMS") profile=$2 architectures=$3
SIGNING_KEY=$(realpath "$SIGNING_KEY")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Nothing in the statement has to be escaped: neither has a space, a quotation mark or a backslash.
uri='^[a-z][a-z0-9+.-]*:[]!#-[^-~]+$'
for name in BUILDER_ID SOURCE_URL; do
    [[ ${!name} =~ $uri ]] || { echo "$name: is ${!name@Q}; use a URI" >&2; exit 1; }
done
[[ ${FEATURES:-} =~ ^[a-z0-9,\ -]*$ ]] || { echo "FEATURES: is ${FEATURES@Q}; use names of features" >&2; exit 1; }

# What isn't committed isn't in the commit, so no verifier may take the commit for the source.
changes=$(git status --porcelain) digest=
if [ -z "$changes" ]; then
    digest=",\"digest\":{\"gitCommit\":\"$(git rev-parse HEAD)\"}"
else
    printf 'the provenance names no commit, because of these changes:\n%s\n' "$changes" >&2
fi

# version COMPILER: its first line about itself.
version() {
    "$1" --version | sed -n '1{s/["\\]//g;p}'
}

# A program that was given was built elsewhere, by compilers that are not known here.
program=given compilers=
if [ -z "${PROGRAM:-}" ]; then
    # Those for another machine have its architecture in their names.
    for architecture in $architectures; do
        case $architecture:$(uname -m) in
        amd64:x86_64 | arm64:aarch64) rustc=rustc cc=cc of= ;;
        *) rustc=$(tests/cross/build.sh) cc=aarch64-linux-gnu-gcc of=-$architecture ;;
        esac
        rust=$(version "$rustc")
        c=$(version $cc)
        compilers+="${compilers:+,}\"rustc$of\":\"$rust\",\"cc$of\":\"$c\""
    done
    program=built compilers=",\"version\":{$compilers}"
fi

subjects=$(sed 's/\(.*\)  \(.*\)/{"name":"\2","digest":{"sha256":"\1"}}/' "$sums" | paste -sd,)
parameters="\"source\":\"$SOURCE_URL\",\"profile\":\"$profile\",\"architecture\":\"$architectures\",\"features\":\"${FEATURES:-}\""

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# No time and no number of the run, so that two releases of a commit by the same compilers and key are the same.
{
    printf '{"_type":"https://in-toto.io/Statement/v1","subject":[%s],"predicateType":"https://slsa.dev/provenance/v1",' "$subjects"
    printf '"predicate":{"buildDefinition":{"buildType":"https://outrigger.dev/make-release/v1",'
    printf '"externalParameters":{%s,"program":"%s"},"internalParameters":{"sourceDateEpoch":"%s"},' \
        "$parameters" $program "$SOURCE_DATE_EPOCH"
    printf '"resolvedDependencies":[{"uri":"git+%s"%s}]},"runDetails":{"builder":{"id":"%s"%s}}}}' \
        "$SOURCE_URL" "$digest" "$BUILDER_ID" "$compilers"
} >"$work/statement"

# DSSE signs the type of the payload with it.
type=application/vnd.in-toto+json
{ printf 'DSSEv1 %d %s %d ' ${#type} $type "$(stat -c %s "$work/statement")"; cat "$work/statement"; } >"$work/signed"
deploy/sign.sh "$work/signed"
printf '{"payloadType":"%s","payload":"%s","signatures":[{"keyid":"","sig":"%s"}]}\n' \
    $type "$(base64 -w0 "$work/statement")" "$(base64 -w0 "$work/signed.sig")"
