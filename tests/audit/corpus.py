from parts import *

CASES = {}


def case(run):
    CASES[run.__name__] = run
    return run


@case
def plain():
    trained(
        lambda model, window, place: nn.functional.mse_loss(model(window[place][0]), window[place][1]),
        dataset=Points(),
        model=network(),
    )


@case
def tokens_bug():
    trained(lambda model, window, place: token_mean(model, *window[place]))


@case
def tokens_fix():
    def loss_of(model, window, place):
        tokens, labels = window[place]
        return summed_loss(model, tokens, labels) * ranks() / total((labels != IGNORED).sum())

    trained(loss_of)


@case
def accumulated_bug():
    trained(lambda model, window, place: token_mean(model, *window[place]) / len(window), accumulate=3)


@case
def accumulated_fix():
    def loss_of(model, window, place):
        terms = total(sum((labels != IGNORED).sum() for _, labels in window))
        return summed_loss(model, *window[place]) * ranks() / terms

    trained(loss_of, accumulate=3)


@case
def not_divided_bug():
    trained(
        lambda model, window, place: nn.functional.mse_loss(model(window[place][0]), window[place][1]),
        dataset=Points(),
        model=network(),
        accumulate=3,
    )


@case
def not_divided_fix():
    trained(
        lambda model, window, place: nn.functional.mse_loss(model(window[place][0]), window[place][1]) / 3,
        dataset=Points(),
        model=network(),
        accumulate=3,
    )
