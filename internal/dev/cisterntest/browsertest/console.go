package browsertest

import (
	"slices"
	"strings"
)

// Expected removes the messages of the console so far that contain a text, such as those about
// connections that the test ends, so that they don't fail it. It returns how many there were.
func (b *Browser) Expected(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.messages)
	b.messages = slices.DeleteFunc(b.messages, func(m string) bool { return strings.Contains(m, text) })
	return n - len(b.messages)
}
