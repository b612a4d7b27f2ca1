#!/usr/bin/env bash
# sign.sh FILE: writes FILE.sig, the Ed25519 signature of the file by SIGNING_KEY (PEM). SIGNING_PASSPHRASE is the key's passphrase;
# without it openssl asks, if the key has one.
set -euo pipefail
exec openssl pkeyutl -sign -rawin -inkey "$SIGNING_KEY" ${SIGNING_PASSPHRASE:+-passin env:SIGNING_PASSPHRASE} -in "$1" -out "$1.sig"
