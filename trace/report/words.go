package report

import "slices"

// word is the label in a stack of trace/torchsnapshot: a frame for the step, each part of the
// module and the category, with "step", "module" or "category" as its file.
type word struct {
	category, module string
	step             int64
}

// takeWords returns the calls of a stack, and the label in its other frames; nil: there is none.
func takeWords(stack []frame) (calls []frame, label *word) {
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
