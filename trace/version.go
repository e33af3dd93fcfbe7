package trace

import (
	"runtime/debug"
	"strings"
	"sync"
)

// version is this module's version in the program: its tag, the go command's pseudo-version, or
// "(devel)".
var version = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return versionIn(info, strings.TrimSuffix(ScopeName, "/trace"))
})

// versionIn returns the version of a module in a program; info may be nil.
func versionIn(info *debug.BuildInfo, module string) string {
	found := ""
	if info != nil {
		for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
			if m.Path != module {
				continue
			}
			if found = m.Version; m.Replace != nil {
				found = m.Replace.Version
			}
			break
		}
	}
	if found == "" {
		return "(devel)"
	}
	return found
}
