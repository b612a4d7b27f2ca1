#!/usr/bin/env perl
# Searches log macros of Rust sources for Debug forms, which are fields like `?value` and placeholders like `{value:?}`, and for fields
# whose keys each line has already. Prints each with file and line, and fails if there is one. Durations are permitted under the names
# below, because their Debug form is "5s".
# Usage: tests/logs.pl FILE...
use strict;
use warnings;

my $durations = qr/(?:delay|timeout|pause|every|elapsed)/;
# Most parsers refuse or drop a second one of the same object.
my $taken     = qr/(?:timestamp|level|target|message|span|spans)/;
my $text      = qr/"(?:[^"\\]|\\.)*"/s;
my $inside    = qr/((?:[^()"]|$text|\((?-1)\))*)/;
my $failed    = 0;

for my $file (@ARGV) {
    open my $handle, '<', $file or die "$file: $!\n";
    my $source = do { local $/; <$handle> };
    while ($source =~ /\b(?:trace|debug|info|warn|error)!\($inside\)/g) {
        my ($arguments, $line) = ($1, 1 + (substr($source, 0, $-[0]) =~ tr/\n//));
        my $messages = join "\n", $arguments =~ /($text)/g;
        (my $fields = $arguments) =~ s/$text/""/g;
        $fields =~ s/\b$durations = \?//g;
        my $ambiguous = $fields =~ /(?:^|,)\s*[%?]?$taken\s*(?:=|,|$)/;
        next unless $ambiguous or $fields =~ /(?:^|[,(=])\s*\?[\w&*]/ or $messages =~ /\{[^{}]*:#?\?\}/;
        (my $macro = $arguments) =~ s/\s+/ /g;
        my $remedy = $ambiguous ? 'give the field another name: each line has that key' : 'write the value: %name, or name = value';
        print "$file:$line: $macro\n    $remedy\n";
        $failed = 1;
    }
}
exit $failed;
