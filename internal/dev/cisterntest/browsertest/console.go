package browsertest

import (
	"slices"
	"strings"
)

// Expected leaves messages of the console that contain a text, such as those about connections that
// the test ends, out of the check at the test's end, where a message may come late. It returns how
// many there were so far.
func (b *Browser) Expected(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, text)
	return len(b.messages) - len(b.unexpected())
}

// unexpected are the messages that contain no expected text. The lock is held.
func (b *Browser) unexpected() []string {
	return slices.DeleteFunc(slices.Clone(b.messages), func(m string) bool {
		return slices.ContainsFunc(b.expected, func(text string) bool { return strings.Contains(m, text) })
	})
}
