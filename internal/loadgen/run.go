package loadgen

import (
	"context"
	"errors"

	"github.com/trueload/trueload/internal/plan"
)

// Run sends the plan and returns when every turn has ended.
func Run(ctx context.Context, src plan.Source, prepare Prepare, opt Options) (Result, error) {
	return Result{}, errors.New("not yet")
}
