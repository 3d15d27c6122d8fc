"""Fit a small model on a table and say how well it predicts, beside a plain guess."""

from runtime import blobs, log
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from .rows import read

__all__ = ["evaluate", "main", "read"]

SHOWN = 10


def main(args):
    table = read(args["blob"], args["target"], args.get("features"))
    log.info(f"{table.task} of {len(table.rows)} rows")
    report = evaluate(table, args.get("folds", 5))
    return {
        "summary": f"{args['target']}: {report['measure']} {report['score']:.3f}, a plain guess has "
        f"{report['baseline']:.3f} ({len(table.rows):,} rows).",
        "task": table.task,
        "rows": len(table.rows),
        "score": report["score"],
        "baseline": report["baseline"],
        "weights": dict(list(report["weights"].items())[:SHOWN]),
        "report_blob": blobs.write_json(report),
    }


def evaluate(table, folds=5):
    """Scores by cross-validation, and the weights of the model on all rows. Raises ValueError for too few rows."""
    classes = table.task == "classification"
    split = _folds(table, folds)
    guess = DummyClassifier() if classes else DummyRegressor()
    scores = cross_val_score(_model(classes), table.rows, table.target, cv=split)
    baseline = cross_val_score(guess, table.rows, table.target, cv=split)
    return {
        "task": table.task,
        "measure": "accuracy" if classes else "R²",
        "score": round(float(scores.mean()), 4),
        "baseline": round(float(baseline.mean()), 4),
        "scores": [round(float(score), 4) for score in scores],
        "rows": len(table.rows),
        "dropped_rows": table.dropped,
        "left_out": table.left_out,
        "weights": _weights(_model(classes).fit(table.rows, table.target)),
    }


def _model(classes):
    """Rows are dicts: numbers stay one feature, each value of a text becomes one."""
    imputer = SimpleImputer(strategy="median", keep_empty_features=True)
    last = LogisticRegression(max_iter=1000) if classes else Ridge()
    return make_pipeline(DictVectorizer(sparse=False), imputer, StandardScaler(), last)


def _folds(table, folds):
    if table.task == "regression":
        rarest, splitter = len(table.rows), KFold
    else:
        rarest, splitter = min(map(table.target.count, set(table.target))), StratifiedKFold
    if rarest < folds:
        raise ValueError(f"too few rows for {folds} folds: {rarest} of the rarest value; take fewer folds or more data")
    return splitter(folds, shuffle=True, random_state=0)


def _weights(model):
    """Largest first."""
    names = model[0].get_feature_names_out()
    weights = model[-1].coef_
    if weights.ndim > 1:
        weights = weights[0] if len(weights) == 1 else abs(weights).max(axis=0)
    found = sorted(zip(names, weights, strict=True), key=lambda pair: -abs(pair[1]))
    return {str(name): round(float(weight), 4) for name, weight in found}
