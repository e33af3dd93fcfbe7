package report

import "slices"

// word is what the frames of a stack say that trace/torchsnapshot adds for labels: their file is
// "step", "module" or "category".
type word struct {
	category, module string
	step             int64
}

// takeWords returns the calls of a stack, and what its other frames say; nil: it has none.
func takeWords(stack []frame) (calls []frame, said *word) {
	var w word
	calls = slices.DeleteFunc(stack, func(f frame) bool {
		switch {
		case f.file == "step":
			w.step = int64(f.line)
		case f.file == "module" && len(f.function) > len(w.module): // the innermost
			w.module = f.function
		case f.file == "category":
			w.category = f.function
		case f.file != "module":
			return false
		}
		return true
	})
	if w == (word{}) {
		return calls, nil
	}
	return calls, &w
}
