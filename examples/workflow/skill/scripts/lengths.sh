#!/bin/sh
echo "length,words" > lengths.csv
tr -cs '[:alpha:]' '\n' < "$1" | awk 'NF { n[length($0)]++ } END { for (l in n) print l "," n[l] }' | sort -n >> lengths.csv
echo "$(grep -c , lengths.csv) lines"
