#!/bin/sh
tr -cs '[:alpha:]' '\n' < "$1" | tr '[:upper:]' '[:lower:]' | sort | uniq -c | sort -k1,1nr -k2
