package cli

import (
	"strconv"
	"strings"
	"unicode"
)

// printable escapes characters that a terminal would interpret, because texts of files are
// untrusted.
func printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
