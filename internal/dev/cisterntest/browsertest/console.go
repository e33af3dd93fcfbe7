package browsertest

import (
	"slices"
	"strings"
)

// Expected excludes messages of the console that contain a text from the check at the test's end,
// also those that come late, such as messages about connections that the test ends. It returns
// their number so far.
func (b *Browser) Expected(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, text)
	return len(b.messages) - len(b.unexpected())
}

// unexpected returns the messages without an expected text. The lock is held.
func (b *Browser) unexpected() []string {
	return slices.DeleteFunc(slices.Clone(b.messages), func(m string) bool {
		return slices.ContainsFunc(b.expected, func(text string) bool { return strings.Contains(m, text) })
	})
}
