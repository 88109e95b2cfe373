package crash

import (
	"flag"
	"os"
	"testing"
)

// Lives wait more than they compute: for processes to start, for faults to be over. As many at once as
// the machine has processors would leave most of it idle.
const livesAtOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", livesAtOnce); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
