package cli

import (
	"strconv"
	"strings"
	"unicode"
)

// printable escapes what a terminal would not print: texts of files may be anything.
func printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
