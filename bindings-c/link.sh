#!/bin/sh
# Makes the installed C library from the static library that cargo builds.
#
#   link.sh ARCHIVE PREFIX
#
# ARCHIVE is target/PROFILE/libmuster_c.a; in PREFIX it makes lib/libmuster.so.0.1.0 with its two links,
# lib/libmuster.a, lib/pkgconfig/muster.pc, lib/cmake/Muster and include/muster.h. A shared library that rustc
# makes has no SONAME and no version script, hence this step. CC names the compiler.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: $0 ARCHIVE PREFIX" >&2
    exit 2
fi
archive=$1
prefix=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

if [ ! -f "$archive" ]; then
    echo "$0: $archive does not exist; run \`cargo build --release -p muster-c\` first" >&2
    exit 1
fi

number() {
    sed -n "s/^#define MUSTER_VERSION_$1 \([0-9][0-9]*\)\$/\1/p" "$here/include/muster.h"
}
major=$(number MAJOR)
minor=$(number MINOR)
version=$major.$minor.$(number PATCH)
soname=libmuster.so.$major
library=libmuster.so.$version

# The linker must take the functions of the map from the archive; it may omit everything else.
wanted=$(sed -n 's/^ *\(muster_[a-z_]*\);$/-Wl,-u,\1/p' "$here/muster.map")

mkdir -p "$prefix/lib/pkgconfig" "$prefix/lib/cmake/Muster" "$prefix/include"
# -static-libgcc: a rank loads no library but the C library.
# -z nodelete: the library may have a thread and callbacks that outlive a dlclose.
# shellcheck disable=SC2086 # one word for each symbol
${CC:-cc} -shared -static-libgcc -o "$prefix/lib/$library.new" \
    -Wl,-soname,"$soname" -Wl,--version-script="$here/muster.map" \
    -Wl,--gc-sections -Wl,--strip-debug -Wl,--as-needed -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro -Wl,-z,now \
    $wanted "$archive" -lpthread -ldl -lrt
mv "$prefix/lib/$library.new" "$prefix/lib/$library"
ln -sf "$library" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/libmuster.so"
cp "$archive" "$prefix/lib/libmuster.a"
cp "$here/include/muster.h" "$here/include/muster_mpi.h" "$prefix/include/"
sed "s/@VERSION@/$version/" "$here/muster.pc.in" >"$prefix/lib/pkgconfig/muster.pc"
for file in MusterConfig.cmake MusterConfigVersion.cmake; do
    sed -e "s/@VERSION@/$version/g" -e "s/@MAJOR@/$major/g" -e "s/@MINOR@/$minor/g" \
        "$here/$file.in" >"$prefix/lib/cmake/Muster/$file"
done
