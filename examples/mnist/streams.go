package main

import (
	"io"
	"os"
	"strings"

	"github.com/cistern-ml/cistern/internal/output"
)

// onStdout are the flags whose output for programs goes to the standard output.
func (o *options) onStdout() (flags []string) {
	for _, c := range [][2]string{{"json", o.json}, {"steps", o.steps}} {
		if c[1] == "-" || output.IsStandard(c[1]) {
			flags = append(flags, "-"+c[0]+" "+c[1])
		}
	}
	if o.trace == "stdout" || o.trace == "otlp" && toConsole() {
		flags = append(flags, "-trace "+o.trace)
	}
	return flags
}

// toConsole reports whether the environment lets a signal of OpenTelemetry go to the standard output.
func toConsole() bool {
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		if strings.Contains(os.Getenv("OTEL_"+signal+"_EXPORTER"), "console") {
			return true
		}
	}
	return false
}

// text is the stream of tables and messages: stderr if an output for programs goes to stdout, which
// it then has alone.
func (o *options) text(stdout, stderr io.Writer) io.Writer {
	if len(o.onStdout()) > 0 {
		return stderr
	}
	return stdout
}
